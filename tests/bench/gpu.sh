#!/usr/bin/env bash
# Everything that needs a card, in one call of at most eight minutes: the Triton kernels beside
# torch, the model and the engine on CUDA, the pause of a weight update, copies to the host.
#
#     bash tests/bench/gpu.sh [--dry-run]
#
# OUT             where results go; var/gpu
# QUIESCE_MODEL   a Hugging Face folder to serve; else the packaged model, else weights by chance
# QUIESCE_PYTHON  a Python with torch, CUDA and triton; else one is looked for
# QUIESCE_WHEELS  wheels of what that Python lacks, installed beside it; .whl
#
# A part that fails or runs out of time is said, and the next one starts. docs/gpu.md explains.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root=$PWD
out=${OUT:-$root/var/gpu}
work=${QUIESCE_GPU_WORK:-$root/var/gpu-work}
wheels=${QUIESCE_WHEELS:-$root/.whl}
dry=""
[ "${1:-}" = --dry-run ] && dry=--dry-run
total_s=480
mkdir -p "$out" "$work"
out=$(cd "$out" && pwd)
work=$(cd "$work" && pwd)
exec > >(tee "$out/gpu.log") 2>&1
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
export TRITON_CACHE_DIR="$work/triton" TRITON_DEFAULT_FP_FUSION=1
# Without a card the kernels are interpreted; with one they must not be.
export TRITON_INTERPRET=$([ -n "$dry" ] && echo 1 || echo 0)
[ -n "$dry" ] && total_s=1200

say() { echo "gpu.sh: $*"; }
left() { echo $((total_s - SECONDS)); }

# What a Python must be able to do; prints why not.
why_not() {
  timeout 120 "$1" - "$dry" <<'PY' 2>&1
import sys
try:
    import torch, triton
except ImportError as error:
    sys.exit(f"{error}")
if not sys.argv[1] and not torch.cuda.is_available():
    sys.exit(f"torch {torch.__version__} sees no CUDA device")
PY
}

find_python() {
  for candidate in "${QUIESCE_PYTHON:-}" .venv/bin/python python3 python; do
    [ -n "$candidate" ] && command -v "$candidate" > /dev/null || continue
    reason=$(why_not "$candidate") && { echo "$candidate"; return 0; }
    say "$candidate will not do: $(echo "$reason" | tail -1)" >&2
  done
  return 1
}

# As bin/run --device cuda sets itself up, with the test tools; needs a package index.
make_environment() {
  say "making the project's own environment with CUDA; this needs a package index"
  timeout 300 python3 - <<'PY'
import sys
sys.path.insert(0, "bin/lib")
import environment
environment.ensure(device="cuda", tests=True)
PY
}

missing_modules() {
  "$python" - <<'PY'
import importlib.util
NEEDED = {  # module: what requirements.lock, or the index, calls it
    "gguf": "gguf", "httptools": "httptools", "httpx": "httpx", "jinja2": "jinja2",
    "msgspec": "msgspec", "multipart": "python-multipart", "numpy": "numpy", "pytest": "pytest",
    "prometheus_client": "prometheus-client", "safetensors": "safetensors",
    "starlette": "starlette", "structlog": "structlog", "tokenizers": "tokenizers",
    "uvicorn": "uvicorn", "uvloop": "uvloop", "xxhash": "xxhash", "zmq": "pyzmq",
}
print(" ".join(sorted(name for module, name in NEEDED.items()
                      if importlib.util.find_spec(module) is None
                      and not (module == "multipart"
                               and importlib.util.find_spec("python_multipart")))))
PY
}

install_missing() {
  missing=$(missing_modules)
  [ -z "$missing" ] && return
  say "this Python lacks: $missing"
  if compgen -G "$wheels/*.whl" > /dev/null; then
    "$python" -m pip install -q --no-index --no-deps --no-compile --upgrade \
      --target "$work/site" "$wheels"/*.whl || say "pip could not install from $wheels"
    export PYTHONPATH="$work/site${PYTHONPATH:+:$PYTHONPATH}"
    missing=$(missing_modules)
    [ -z "$missing" ] && { say "installed from $wheels"; return; }
  fi
  say "parts will fail for want of: $missing"
  say "bring them as wheels, one of each, in $wheels; on a machine with an index:"
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  pins=""
  for name in $missing; do pins="$pins $(grep -i -o -m1 "^$name==[^ ;]*" requirements.lock || echo "$name")"; done
  say "  pip download --no-deps --only-binary=:all: --python-version $version -d .whl$pins"
}

results=""
# part NAME SECONDS COMMAND…: within its own time, and what is left of the whole.
part() {
  name=$1 limit=$2
  shift 2
  [ -n "$dry" ] && limit=300
  [ "$limit" -gt "$(left)" ] && limit=$(left)
  if [ "$limit" -lt 5 ]; then
    results="$results$name: not run, no time left"$'\n'
    return
  fi
  say "== $name, at most $limit s"
  begun=$SECONDS
  timeout --kill-after=5 "$limit" "$@"
  status=$?
  case $status in
    0) ended=passed ;;
    124 | 137) ended="cut short after $limit s; what it had measured is written" ;;
    *) ended="FAILED with status $status" ;;
  esac
  results="$results$name: $ended, $((SECONDS - begun)) s"$'\n'
}

# Four processes, because nearly all of it is compiling: one a dtype, and what has none.
checks() {
  files=(tests/engine/kernels/gpu/check_*.py tests/engine/models/gpu/check_*.py)
  command=("$python" -m pytest -q -c tests/bench/gpu/pytest.ini --rootdir "$root")
  worst=0 pids=()
  for kind in torch.float32 torch.float16 torch.bfloat16 \
    "not torch.float32 and not torch.float16 and not torch.bfloat16"; do
    "${command[@]}" -k "$kind" "${files[@]}" > "$work/checks-${#pids[@]}.log" 2>&1 &
    pids+=($!)
  done
  for index in "${!pids[@]}"; do
    wait "${pids[$index]}"
    status=$?
    [ "$status" = 5 ] && status=0 # no test of this dtype: bfloat16 is not interpreted
    [ "$status" -gt "$worst" ] && worst=$status
    tail -25 "$work/checks-$index.log" | grep -v nanobind
  done
  return "$worst"
}

python=$(find_python) || {
  [ -n "$dry" ] && { say "no Python here has torch and triton; set QUIESCE_PYTHON"; exit 1; }
  # Not for nothing: three gigabytes that no card would use.
  compgen -G "/dev/nvidia[0-9]*" > /dev/null || { say "there is no NVIDIA card here"; exit 1; }
  make_environment
  python=$(find_python) || { say "no Python here can do it; the reasons are above"; exit 1; }
}
case $python in */*) python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python") ;; esac
say "using $python"
[ -n "$dry" ] && say "dry run on a CPU: the figures mean nothing"
command -v nvidia-smi > /dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv
install_missing
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"

export python root work
export -f checks
bench() { echo "$python" -m "tests.bench.gpu.$1" --out "$out" --work "$work" $dry; }
part "kernels beside torch" 90 bash -c checks
part "model step" 100 $(bench step)
part "engine over HTTP" 80 $(bench over_http)
part "pause of a weight update" 150 $(bench pause) --reps 2
part "copies to the host" 30 $(bench hicache)
part "tile sizes" 60 $(bench kernels)

say "== after $SECONDS s, results in $out"
printf '%s' "$results"
case $results in *FAILED* | *"not run"* | *"cut short"*) exit 1 ;; esac
