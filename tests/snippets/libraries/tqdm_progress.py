import io

import pandas as pd
from tqdm import tqdm, trange
from tqdm.auto import tqdm as automatic

shown = io.StringIO()
print(sum(tqdm(range(1000), file=shown)), sum(1 for _ in trange(3, file=shown)), "100%" in shown.getvalue())
print([n for n in automatic([1, 2], disable=True)])
tqdm.pandas(file=shown, desc="doubled")
print(pd.Series([1, 2]).progress_apply(lambda n: 2 * n).to_list(), "doubled" in shown.getvalue())
