#!/usr/bin/env bash
# Prints the names, tags and build arguments of the server's image, as outputs of a workflow's step: image_names.sh VERSION
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/names.env"
version=${1:?image_names.sh VERSION}
cat <<END
image=$IMAGE_OF_SERVER
tags=$IMAGE_OF_SERVER:$version,$IMAGE_OF_SERVER:latest
arguments<<ARGUMENTS
VERSION=$version
SOURCE=https://github.com/$REPOSITORY
REVISION=$(git rev-parse HEAD)
MCP_NAME=io.github.${REPOSITORY%%/*}/$NAME
ARGUMENTS
END
