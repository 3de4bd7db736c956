"""Weight files as the operating system and safetensors have them: safe paths, headers, folders."""
