from bs4 import BeautifulSoup

page = "<html><head><title>Shop</title></head><body><p class=a>One</p><p>Two <a href='/x'>three</a></body></html>"
for parser in "lxml", "html5lib", "html.parser":
    soup = BeautifulSoup(page, parser)
    print(soup.title.string, [p.get_text() for p in soup.find_all("p")], soup.select_one("a")["href"], soup.select("p.a"))
