#!/bin/sh
# Starts a scorer for `weir-bench side-by-side`: PORT BACKEND_PORT BACKEND_PORT PICKER_PORT.
set -eu
config=$(mktemp --suffix=.yaml)
cat >"$config" <<EOF
listen: 127.0.0.1:$1
pools: [{ name: bench, models: [bench], endpoints: ["127.0.0.1:$2", "127.0.0.1:$3"] }]
picker: { listen: 127.0.0.1:$4 }
EOF
exec dist/weir scorer --config "$config"
