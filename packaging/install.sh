#!/bin/sh
# Installs Pippin as a program of this user, by uv: curl -fsSL ADDRESS/install.sh | sh
# PIPPIN_VERSION=1.2.3 chooses a release, PIPPIN_EXTRAS=vision,mcp what else to install; uv's own variables count too.
set -eu

fail() {
  echo "pippin: $1" >&2
  exit 1
}

# A function, so that nothing runs of a script that arrived in part.
main() {
  extras=${PIPPIN_EXTRAS:-}
  kernels=
  case "$(uname -s) $(uname -m)" in
    "Darwin arm64") ;;
    Linux\ *)
      device=cpu
      kernels=pippin-kernels
      if command -v nvidia-smi > /dev/null; then
        device=cuda
        kernels=
      fi
      extras=$device${extras:+,$extras}
      ;;
    *) fail "it runs on Macs with an Apple processor and on Linux, not on $(uname -s) $(uname -m)." ;;
  esac
  if ! command -v uv > /dev/null; then
    echo "Fetching uv, which installs Python programs ..."
    curl -LsSf https://astral.sh/uv/install.sh | sh
    PATH=$HOME/.local/bin:$PATH
  fi
  uv tool install --upgrade --python ">=3.11" ${kernels:+--with "$kernels"} \
    "pippin${extras:+[$extras]}${PIPPIN_VERSION:+==$PIPPIN_VERSION}"
  echo "Pippin is installed. Next: pippin recommend, or pippin run MODEL"
  command -v pippin > /dev/null || echo "A new shell finds it after: uv tool update-shell"
}

main
