import http.server
import threading
import urllib.request

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
server.RequestHandlerClass.log_message = lambda *_: None
threading.Thread(target=server.serve_forever, daemon=True).start()
open("page.txt", "w").write("served")
print(urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/page.txt").read())
