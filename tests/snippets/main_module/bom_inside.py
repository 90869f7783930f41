print("a")
﻿print("b")
