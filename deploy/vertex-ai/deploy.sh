#!/usr/bin/env bash
# Creates an endpoint: deploy.sh IMAGE REGION
#   IMAGE   the image in Artifact Registry
#   REGION  such as europe-west4
set -euo pipefail
if (($# != 2)); then
    sed -n '2,4s/^# //p' "$0" >&2
    exit 2
fi
name=tweet-sentiment
# The service takes port and routes from the variables that Vertex AI derives from these flags.
model=$(gcloud ai models upload --region "$2" --display-name "$name" \
    --container-image-uri "$1" --container-ports 8080 \
    --container-health-route /health/ready --container-predict-route /predict \
    --format 'value(model)')
endpoint=$(gcloud ai endpoints create --region "$2" --display-name "$name" --format 'value(name)')
gcloud ai endpoints deploy-model "$endpoint" --region "$2" --model "$model" \
    --display-name "$name" --machine-type n2-standard-2
gcloud ai endpoints predict "$endpoint" --region "$2" \
    --json-request <(echo '{"instances": ["I love this!"]}')
