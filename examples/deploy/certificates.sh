#!/bin/sh
# certificates.sh FOLDER NODE...: an authority and a certificate for each node; what is there already stays.
# Each also names `lakemq`, for clients that know several nodes: Tls(server_name="lakemq").
# Keys are made readable for user 10001 (the image's) when this runs as root.
set -eu
folder=$1
shift
umask 077
mkdir -p "$folder"
cd "$folder"
if [ ! -f nodes-ca.key ]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "/CN=LakeMQ nodes" \
        -addext keyUsage=critical,keyCertSign,cRLSign -keyout nodes-ca.key -out nodes-ca.pem 2>/dev/null
fi
for node in "$@"; do
    [ -f "$node.pem" ] && continue
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$node" -keyout "$node.key" -out "$node.csr" 2>/dev/null
    printf 'subjectAltName=DNS:%s,DNS:lakemq,DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n' "$node" >"$node.ext"
    openssl x509 -req -in "$node.csr" -CA nodes-ca.pem -CAkey nodes-ca.key -CAcreateserial -days 825 -extfile "$node.ext" -out "$node.pem" 2>/dev/null
    rm "$node.csr" "$node.ext"
done
chmod 644 -- *.pem
if [ "$(id -u)" = 0 ]; then
    chmod 755 .
    for node in "$@"; do chown 10001 "$node.key"; done
fi
