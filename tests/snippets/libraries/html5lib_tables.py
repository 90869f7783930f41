import io

import html5lib
import pandas as pd

page = "<table><tr><th>month<th>sales<tr><td>Jan<td>3<tr><td>Feb<td>4</table>"
for flavor in None, "html5lib", "lxml", "bs4":
    print(pd.read_html(io.StringIO(page), flavor=flavor)[0].to_dict("list"))
print(html5lib.parse("<p>One", namespaceHTMLElements=False).find(".//p").text)
