#!/usr/bin/env bash
# Builds the fuzz targets and runs each for some seconds: fuzz/run.sh [SECONDS [TARGET...]].
#
# No nightly compiler and no cargo-fuzz are needed: libFuzzer comes as a crate, and the flags below are what
# `cargo fuzz build --sanitizer none` passes. With WEIR_FUZZ_SANITIZER=address leaks and stray accesses in dependencies are
# found too, at a third of the speed; that needs the runtime that rustup's toolchains have. With WEIR_FUZZ_SEED=1 each run begins
# with the same inputs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

SECONDS_EACH=${1:-30}
[ $# = 0 ] || shift
TARGETS=("$@")
[ $# != 0 ] || TARGETS=(request response restore limit engine wire headers config peers reply kv_events)

HOST=$(rustc -vV | sed -n 's/^host: //p')
FLAGS="--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module"
for option in level=4 inline-8bit-counters pc-table trace-compares; do
  FLAGS+=" -Cllvm-args=-sanitizer-coverage-$option"
done
OUT=${CARGO_TARGET_DIR:-target}/fuzz
if [ -n "${WEIR_FUZZ_SANITIZER:-}" ]; then
  # For this one flag: the compiler is the stable one.
  export RUSTC_BOOTSTRAP=1
  FLAGS+=" -Zsanitizer=$WEIR_FUZZ_SANITIZER"
  OUT+=-$WEIR_FUZZ_SANITIZER
fi
RUSTFLAGS=$FLAGS cargo build --locked --quiet --release --manifest-path fuzz/Cargo.toml --target "$HOST" --target-dir "$OUT"

# --- seeds: the acceptance inputs, in the targets' form ----------------------------------------------------------

# A message of a first line, header lines, an empty line, and a file.
message() { printf '%s\n' "${@:1:$#-1}" ''; cat "${@: -1}"; }

seeds() {
  local file name path seeds=$OUT/seeds
  rm -rf "$seeds"
  mkdir -p "$seeds"/{request,response,restore,engine}
  cp -r fuzz/seeds/. "$seeds"
  for file in tests/acceptance/requests/*.json; do
    name=$(basename "$file" .json)
    case $name in
      anthropic*) path=/v1/messages ;;
      completions*) path=/v1/completions ;;
      embeddings*) path=/v1/embeddings ;;
      responses*) path=/v1/responses ;;
      sglang*) path=/generate ;;
      *) path=/v1/chat/completions ;;
    esac
    message "POST $path" 'content-type: application/json' "$file" >"$seeds/request/$name"
    message "POST $path?x=1" 'weir-config: {"request":{"block_tokens":1,"max_blocks":9,"max_body_bytes":900}}' \
      "$file" >"$seeds/request/$name.small"
    message "POST $path" 'weir-config: {"rewrite":{"rules":[{"models":["*"],"targets":[{"model":"another one"}]}]}}' \
      "$file" >"$seeds/request/$name.renamed"
  done
  for file in tests/acceptance/responses/*.sse; do
    message 200 'content-type: text/event-stream' "$file" >"$seeds/response/$(basename "$file")"
  done
  for file in tests/acceptance/responses/*.json; do
    message 200 'content-type: application/json' "$file" >"$seeds/response/$(basename "$file")"
  done
  cp "$seeds"/response/* "$seeds/restore/"
  cp tests/acceptance/metrics/* "$seeds/engine/"
}
seeds

# --- runs --------------------------------------------------------------------------------------------------------

failed=0
for target in "${TARGETS[@]}"; do
  corpus=$OUT/corpus/$target
  found=$OUT/found/
  mkdir -p "$corpus" "$found" "$OUT/seeds/$target"
  arguments=(-max_total_time="$SECONDS_EACH" -timeout=10 -rss_limit_mb=1024 -max_len=65536 -print_final_stats=1
    -artifact_prefix="$found$target-")
  [ -z "${WEIR_FUZZ_SEED:-}" ] || arguments+=(-seed="$WEIR_FUZZ_SEED")
  [ ! -f "fuzz/dictionaries/$target.txt" ] || arguments+=(-dict="fuzz/dictionaries/$target.txt")
  log=$OUT/$target.log
  if "$OUT/$HOST/release/$target" "${arguments[@]}" "$corpus" "$OUT/seeds/$target" >"$log" 2>&1; then
    printf '%-9s %s, %s\n' "$target" \
      "$(sed -n 's/^stat::number_of_executed_units: */runs: /p' "$log")" \
      "$(grep -o 'cov: [0-9]* ft: [0-9]* corp: [0-9]*' "$log" | tail -n 1)"
  else
    failed=1
    printf '%s FAILED; the input is in %s, and again: %s/%s/release/%s INPUT\n' \
      "$target" "$found" "$OUT" "$HOST" "$target"
    grep -v '^#' "$log" | tail -n 40
  fi
done
exit $failed
