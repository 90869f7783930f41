# differs: stdout: below the program there is one frame of the fork server
import logging
import sys


def caller():
    return sys._getframe(1).f_globals["__name__"], sys._getframemodulename(1)


print(caller(), sys._getframemodulename(0), sys._getframemodulename(5))
logging.basicConfig(format="%(module)s %(funcName)s %(lineno)d %(pathname)s %(message)s", stream=sys.stdout)
logging.warning("at the module's level")
logging.warning("beyond it", stacklevel=4)
