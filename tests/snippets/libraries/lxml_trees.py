import io

import pandas as pd
from lxml import etree, html

tree = etree.fromstring("<shop><item price='3'>pen</item><item price='5'>book</item></shop>")
print(tree.xpath("//item[@price > 4]/text()"), etree.tostring(tree.find("item")))
page = html.fromstring("<p>One<br>two <a href='/x'>three</a>")
print(page.text_content(), [link for _, _, link, _ in page.iterlinks()])
print(pd.read_xml(io.BytesIO(etree.tostring(tree))).to_dict("list"))
