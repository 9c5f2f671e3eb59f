#!/usr/bin/env bash
# Installs the Debian packages that are missing: debian_packages.sh PACKAGE...
#
# It says which before it does. Without root and sudo it names the command and fails, so that nothing starts that
# would need them. SKIP_PACKAGES=1 is for machines that have the programs from elsewhere.
set -euo pipefail

[ -z "${SKIP_PACKAGES:-}" ] || exit 0
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "setup: this is not Debian or Ubuntu, so nothing was installed. What comes next needs the programs of: $*" >&2
  exit 0
fi
missing=()
for package; do
  dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
((${#missing[@]})) || exit 0

if [ "$(id -u)" = 0 ]; then
  as_root=()
elif sudo -n true 2>/dev/null || { [ -t 0 ] && command -v sudo >/dev/null; }; then
  as_root=(sudo) # in a terminal it may ask for the password
else
  echo "setup: ${#missing[@]} Debian packages are missing, and this is neither root nor a user with sudo. Run as root:" >&2
  echo "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
  echo "or set SKIP_PACKAGES=1 if their programs are here by other means." >&2
  exit 1
fi
echo "setup: installing Debian packages: ${missing[*]}"
# Only the programs are wanted: Debian asks this file whether it may start the services of a package.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  trap '"${as_root[@]}" rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
  "${as_root[@]}" chmod 755 "$policy"
fi
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null >/dev/null
