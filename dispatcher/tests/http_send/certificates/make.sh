#!/bin/sh
# Makes the keys and certificates in this directory anew: good for a hundred years (but for expired.pem), trusted by nobody, used
# by tests.
set -eu
cd "$(dirname "$0")"
key() { openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }
authority() { # name
  key "$1.key"
  openssl req -x509 -new -key "$1.key" -days 36500 -subj "/CN=Test authority $1" -out "$1.pem" \
    -addext keyUsage=critical,keyCertSign -addext basicConstraints=critical,CA:TRUE
}
leaf() { # name authority alternative-names usage start end
  key "$1.key"
  printf 'basicConstraints = critical,CA:FALSE\nsubjectAltName = %s\nextendedKeyUsage = %s\n' "$3" "$4" > leaf.ext
  printf '[ca]\ndefault_ca=d\n[d]\ndatabase=index\nnew_certs_dir=.\nrand_serial=yes\ndefault_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n' > leaf.cnf
  : > index
  openssl req -new -key "$1.key" -subj "/CN=$1" -out leaf.csr
  openssl ca -batch -notext -config leaf.cnf -cert "$2.pem" -keyfile "$2.key" -startdate "$5" -enddate "$6" \
    -extfile leaf.ext -in leaf.csr -out "$1.pem" 2> /dev/null
}
long="20200101000000Z 21200101000000Z"
authority ca
authority strangers
leaf server ca IP:127.0.0.1,DNS:localhost serverAuth $long
leaf other-name ca DNS:other.example serverAuth $long
leaf expired ca IP:127.0.0.1 serverAuth 20200101000000Z 20200201000000Z
leaf client ca DNS:client.example clientAuth $long
leaf stranger strangers DNS:stranger.example clientAuth $long
rm -f ca.key strangers.key leaf.* index* [0-9A-F]*[0-9A-F].pem
