"""Lists the pods of the namespace with the service account of the pod it runs in; prints the status of HTTP."""

import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path

account = Path("/var/run/secrets/kubernetes.io/serviceaccount")
host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
namespace = (account / "namespace").read_text()
request = urllib.request.Request(
    f"https://{host}:{port}/api/v1/namespaces/{namespace}/pods",
    headers={"Authorization": "Bearer " + (account / "token").read_text()},
)
try:
    context = ssl.create_default_context(cafile=str(account / "ca.crt"))
    with urllib.request.urlopen(request, timeout=30, context=context) as answer:
        print(answer.status)
except urllib.error.HTTPError as refused:
    print(refused.code)
