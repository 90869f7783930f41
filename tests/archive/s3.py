"""Checks an archive in a bucket: one server saves a session, another restores it, closing deletes it, and a bucket
that does not answer delays no caller. Prints a line for each check."""

import json
import os
import signal
import sys
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
import boto3  # noqa: E402
from server import Server  # noqa: E402

BUCKET = "sessions"


def check(name, is_good, seen=""):
    print(f"{'ok' if is_good else 'FAIL'} {name}" + ("" if is_good else f": {str(seen)[:400]}"), flush=True)


def patiently(what):
    """Waits until something does not fail."""
    for _ in range(200):
        try:
            return what()
        except Exception:
            time.sleep(0.1)
    return what()


def main(binary, scratch, moto):
    os.environ["AWS_DEFAULT_REGION"] = os.environ["AWS_REGION"]
    s3 = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    patiently(lambda: s3.create_bucket(Bucket=BUCKET))
    settings = {
        "SANDBOX_ARCHIVE": f"s3://{BUCKET}/a/prefix",
        "SANDBOX_KEY_FILE": str(scratch / "key"),
        "SANDBOX_POOL_SIZE": "0",
    }
    settings |= {name: value for name, value in os.environ.items() if name in ("SANDBOX_ENGINE", "SANDBOX_IMAGE")}

    def keys():
        return [found["Key"] for found in s3.list_objects_v2(Bucket=BUCKET).get("Contents", [])]

    def cell(server, code, session="report"):
        return server.call("execute_code", session_id=session, code=code)[1]

    one = Server(binary, scratch, "one", settings)
    # More than a part, so that it is written in several.
    cell(one, "import os; data = os.urandom(20 << 20); open('large.bin', 'wb').write(data); import hashlib")
    digest = cell(one, "x = 41\nhashlib.sha256(data).hexdigest()")["result"]
    listed = one.call("list_artifacts", session_id="report")[1]
    url = listed["artifacts"][0].get("download_url") or listed["download_url_template"].replace("{filename}", "large.bin")
    one.process.send_signal(signal.SIGTERM)
    check("a server that ends has saved its session", one.end() == 0 and any("/manifest" in key for key in keys()), keys())
    check("everything is below the prefix", all(key.startswith("a/prefix/") for key in keys()), keys())

    two = Server(binary, scratch, "two", settings)
    cell(two, "1", "other")
    cell(two, "open('x.txt', 'w').write('x')", "other")
    there = two.call("list_artifacts", session_id="other")[1]
    start = (there["artifacts"][0].get("download_url") or there["download_url_template"]).split("/files/")[0]
    here = start + "/files/" + url.split("/files/", 1)[1]
    with urllib.request.urlopen(urllib.request.Request(here, headers={"Range": "bytes=5-14"})) as answer:
        check("a URL goes on with the next server, ranges too", answer.status == 206 and len(answer.read()) == 10)
    back = cell(two, "import hashlib; x += 1; (x, hashlib.sha256(open('large.bin', 'rb').read()).hexdigest(), hashlib.sha256(data).hexdigest())")
    check("another server brings files and variables back", back["result"].count(digest.strip("'")) == 2 and "(42," in back["result"], back)
    check("and says so", "was brought back" in json.dumps(back.get("notes")), back)
    for session in "report", "other":
        two.call("close_session", session_id=session)
    check("what is closed is gone from the bucket", keys() == [], keys())

    cell(two, "y = 1", "late")
    os.kill(moto, signal.SIGTERM)
    begun = time.monotonic()
    alone = cell(two, "1 + 1", "alone")
    took = time.monotonic() - begun
    check("without the bucket a session starts empty", alone["result"] == "2" and took < 30, (took, alone))
    check("and says so", "cannot be reached" in json.dumps(alone.get("notes")), alone)
    begun = time.monotonic()
    two.process.send_signal(signal.SIGTERM)
    two.end()
    check("and the server ends in its time", time.monotonic() - begun < 30, time.monotonic() - begun)


main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
