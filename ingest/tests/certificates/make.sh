#!/bin/sh
# Makes the keys and certificates in this directory anew: good for a hundred years, trusted by nobody, used by tests.
set -eu
cd "$(dirname "$0")"
key() { openssl genpkey -quiet -out "$@"; }
key ca.key -algorithm EC -pkeyopt ec_paramgen_curve:P-256
key tls.key -algorithm EC -pkeyopt ec_paramgen_curve:P-256
key paypal.key -algorithm RSA -pkeyopt rsa_keygen_bits:2048
span="-days 36500"
openssl req -x509 -new -key ca.key $span -subj "/CN=Test authority" -addext keyUsage=critical,keyCertSign \
  -addext basicConstraints=critical,CA:TRUE -out ca.pem
leaf() { # file key common-name names
  openssl req -new -key "$2" -subj "/O=Test/CN=$3" |
    openssl x509 -req -CA ca.pem -CAkey ca.key $span -out "$1" -extfile /dev/fd/3 3<<END
basicConstraints = critical,CA:FALSE
subjectAltName = $4
END
}
leaf tls.pem tls.key localhost "DNS:localhost,IP:127.0.0.1"
leaf paypal.pem paypal.key messageverificationcerts.paypal.com "DNS:messageverificationcerts.paypal.com"
leaf sandbox.pem paypal.key messageverificationcerts.sandbox.paypal.com "DNS:other.example"
leaf other.pem paypal.key messageverificationcerts.notpaypal.com "DNS:paypal.com,DNS:x.messageverificationcerts.paypal.com"
leaf not-rsa.pem tls.key messageverificationcerts.paypal.com "DNS:messageverificationcerts.paypal.com"
rm ca.key
