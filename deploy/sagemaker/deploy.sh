#!/usr/bin/env bash
# Creates an endpoint: deploy.sh IMAGE ROLE [MODEL_DATA]
#   IMAGE       the image in Amazon ECR
#   ROLE        the ARN of the role that may read the image and the model
#   MODEL_DATA  s3://…/model.tar.gz with a bundle; without it, the embedded model is served
set -euo pipefail
if (($# < 2)); then
    sed -n '2,5s/^# //p' "$0" >&2
    exit 2
fi
container="Image=$1${3:+,ModelDataUrl=$3}"
name=tweet-sentiment
aws sagemaker create-model --model-name "$name" --execution-role-arn "$2" \
    --primary-container "$container"
aws sagemaker create-endpoint-config --endpoint-config-name "$name" --production-variants \
    "VariantName=all,ModelName=$name,InstanceType=ml.c6i.large,InitialInstanceCount=1"
aws sagemaker create-endpoint --endpoint-name "$name" --endpoint-config-name "$name"
aws sagemaker wait endpoint-in-service --endpoint-name "$name"
aws sagemaker-runtime invoke-endpoint --endpoint-name "$name" --content-type application/json \
    --cli-binary-format raw-in-base64-out --body '{"inputs": "I love this!"}' /dev/stdout
