def double(n):
    """
    >>> double(2)
    4
    >>> double("a")
    'aaa'
    """
    return n * 2


import doctest

print(doctest.testmod())
