#!/bin/sh
# Installs the Debian packages of tools that the tests run and PyPI does not have. Each argument is
# COMMAND:PACKAGE or FILE:PACKAGE. Without them their tests are skipped, but never in CI.
set -eu
missing=""
for tool in "$@"; do
    [ -e "${tool%%:*}" ] || PATH="$PATH:/usr/sbin" command -v "${tool%%:*}" >/dev/null || missing="$missing ${tool#*:}"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "Not installed, and no right to install it:$missing. Some tests may be skipped."
    exit 0
fi
echo "You are root, so these system packages are installed with apt-get, once, for the tests:$missing"
# Packages of servers start them; this is how Debian lets one say no.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod +x "$policy"
fi
# Another apt may be at work, as on a machine that has just started: update cannot wait for its lock.
tries=30
until apt-get -qq update; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || exit 1
    sleep 10
done
# shellcheck disable=SC2086 # several words
DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install --no-install-recommends $missing >/dev/null
