#!/usr/bin/env bash
# Runs what tools/pack made, on a machine with a GPU.
#
#   run.sh tests [NAME...]      test programs with NVTE_TEST_BACKEND=cuda
#   run.sh sanitize [NAME...]   the same under compute-sanitizer: memcheck, initcheck, racecheck
#   run.sh python               Python tests on CUDA tensors
#   run.sh bench [ARGS...]      gpu.py: operations
#   run.sh layers [ARGS...]     gpu_layers.py: layers as a PyTorch user meets them
#   run.sh bert [ARGS...]       examples/pytorch/bert.py with --device cuda; needs transformers
#   run.sh train [ARGS...]      the training example with --device cuda
# Logs and results go to $OUT (default: ./out).
set -uo pipefail
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }
case ${1:-} in -h | --help) usage; exit ;; esac
here=$(cd "$(dirname "$0")" && pwd)
export OUT=${OUT:-$PWD/out} NVTE_TEST_BACKEND=cuda NVTE_LIBRARY="$here/libnvte.so" PYTHONPATH="$here/python:$here/python/site${PYTHONPATH:+:$PYTHONPATH}"
# NVRTC and cuBLASLt of the Python environment, where there is one.
dirs=$(python3 -c 'import glob,os,sys; print(":".join(d for p in sys.path for d in sorted(glob.glob(os.path.join(p,"nvidia","*","lib")),reverse=True)))' 2>/dev/null || true)
export NVTE_LIBRARY_PATH=${NVTE_LIBRARY_PATH:-$dirs}
failed=0
report() { # name, status, log
  if [ "$2" -eq 0 ]; then echo "ok    $1 ($(grep -h '^test result' "$3" | tail -1 | cut -d. -f2 | cut -c1-40))"; else echo "FAIL  $1 (status $2)"; tail -n 25 "$3"; failed=1; fi
}
names() { if [ $# -gt 0 ]; then printf '%s\n' "$@"; else ls "$here/tests"; fi; }
command=${1:-tests}; shift || true
case $command in
  tests | sanitize) [ -d "$here/tests" ] || tar -C "$here" -xzf "$here/tests.tar.gz" || exit 1 ;;
  python | bench | layers | bert | train) ;;
  *) echo "run.sh: $command is none of its commands" >&2; usage >&2; exit 2 ;;
esac
mkdir -p "$OUT"
case $command in
  tests)
    for t in $(names "$@"); do timeout "${LIMIT:-240}" "$here/tests/$t" >"$OUT/$t.log" 2>&1; report "$t" $? "$OUT/$t.log"; done ;;
  sanitize)
    export NVTE_TEST_SMALL=1
    for tool in ${TOOLS:-memcheck initcheck racecheck}; do
      for t in $(names "$@"); do
        timeout "${LIMIT:-240}" compute-sanitizer --tool "$tool" --error-exitcode 99 --print-limit 5 "$here/tests/$t" --test-threads 1 >"$OUT/$tool-$t.log" 2>&1
        report "$tool $t" $? "$OUT/$tool-$t.log"
        grep -h "ERROR SUMMARY" "$OUT/$tool-$t.log" | tail -1
      done
    done ;;
  python) (cd "$here/python/tests" && python3 -m pytest -q -p no:cacheprovider "$@") || failed=1 ;;
  bench) python3 "$here/gpu.py" --commit "$(cat "$here/COMMIT")" "$@" || failed=1 ;;
  layers) python3 "$here/gpu_layers.py" --commit "$(cat "$here/COMMIT")" "$@" || failed=1 ;;
  bert) python3 "$here/examples/pytorch/bert.py" --device cuda "$@" || failed=1 ;;
  train) "$here/bin/train" --device cuda "$@" || failed=1 ;;
esac
exit $failed
