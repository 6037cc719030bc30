#!/bin/sh
# Makes the files of this folder anew: an authority, a key and certificate of 127.0.0.1 and localhost, a public key as a JWK set, and a token
# signed with that key. They are valid for a hundred years, are trusted by nobody, and serve one test. Needs openssl and python3.
set -e
days=36500
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days $days -subj "/CN=uow tests" 2>/dev/null
openssl req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj "/CN=localhost" 2>/dev/null
echo "subjectAltName=IP:127.0.0.1,DNS:localhost" > server.ext
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out server.crt -days $days -extfile server.ext 2>/dev/null
cat server.key server.crt > server.pem
python3 - <<'P'
import base64, json, subprocess
def b64(data): return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
def text(value): return b64(json.dumps(value, separators=(",", ":")).encode())
modulus = subprocess.run(["openssl", "rsa", "-in", "server.key", "-noout", "-modulus"], capture_output=True, check=True).stdout
key = {"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "tests", "e": "AQAB", "n": b64(bytes.fromhex(modulus.decode().strip().split("=")[1]))}
open("jwks.json", "w").write(json.dumps({"keys": [key]}, indent=1) + "\n")
signed = text({"alg": "RS256", "kid": "tests", "typ": "JWT"}) + "." + text(
    {"sub": "spark", "iss": "tests", "aud": "kafka", "scope": "read", "iat": 1700000000, "exp": 4800000000})
signature = subprocess.run(["openssl", "dgst", "-sha256", "-sign", "server.key"], input=signed.encode(), capture_output=True, check=True).stdout
open("token.jwt", "w").write(signed + "." + b64(signature) + "\n")
P
rm -f ca.key ca.srl server.key server.crt server.csr server.ext
