# -*- coding: no-such-encoding -*-
# start: cold: an encoding that is unknown, or is not that of the mark, is told otherwise of a text
print("never")
