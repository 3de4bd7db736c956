# Finds a Python that can make virtual environments; sets $python or says in one sentence what to install.
python=
for candidate in "${QUIESCE_PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11; do
  [ -n "$candidate" ] || continue
  command -v "$candidate" >/dev/null 2>&1 || continue
  if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$candidate; break; fi
done
if [ -z "$python" ]; then
  echo "Quiesce needs Python 3.11 or newer: apt-get install python3 python3-venv (or set QUIESCE_PYTHON)." >&2
  exit 1
fi
if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
  echo "This Python cannot make virtual environments: apt-get install python3-venv." >&2
  exit 1
fi
