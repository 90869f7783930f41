# -*- coding: latin-1 -*-
text = "é"
print(len(text), ascii(text))
