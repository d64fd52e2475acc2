#!/usr/bin/env bash
# Starts an image as in production, with a read-only root, and asks it for one answer, and for its
# health over gRPC.
# Usage: deploy/smoke-test.sh IMAGE
set -euo pipefail
image=${1:?usage: deploy/smoke-test.sh IMAGE}

container=$(docker run --detach --read-only --tmpfs /tmp --cap-drop ALL --publish 127.0.0.1::8000 \
    --env SENTIMENT_GRPC_PORT=9000 "$image")
trap 'docker logs "$container"; docker rm --force "$container" >/dev/null' EXIT
url=http://$(docker port "$container" 8000/tcp)

curl --fail --silent --show-error --retry 60 --retry-delay 1 --retry-all-errors "$url/health/ready"
answer=$(curl --fail --silent --show-error --json '{"inputs": "I love this!"}' "$url/classify")
echo "$answer"
grep --quiet '"label":"positive"' <<<"$answer"
docker exec --interactive "$container" python - localhost:9000 <"$(dirname "$0")/grpc_health.py"

docker stop --timeout 30 "$container" >/dev/null
code=$(docker inspect --format '{{.State.ExitCode}}' "$container")
if [ "$code" != 0 ]; then
    echo "SIGTERM ended the service with exit code $code instead of 0" >&2
    exit 1
fi
