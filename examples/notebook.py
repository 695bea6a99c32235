"""From `lakemq.connect` to a plotted answer: at what hour is the air worst? Cells, as editors and
Jupytext know them; for a table of `lakemq export --topic air`: notebook.py BROKER TABLE PICTURE"""

# %%
import json
import sys

import pandas as pd
import pyarrow as pa
from matplotlib.figure import Figure

import lakemq

broker, table, picture = sys.argv[1:]
# %% What is there
with lakemq.connect(broker) as client:
    print(sum(each.high_watermark for each in client.describe_topic("air").partitions), "records")
# %% All of it: the rows of the table, and behind them what only the journal has yet
found = lakemq.read("air", bootstrap=broker, path=table, columns=["key", "value"])
air = pa.table(found).to_pandas()
# %% Carbon monoxide by hour of the day; -200 is what the device sends when it has no reading
monoxide = pd.json_normalize(air[air.key == b"air/co_gt"].value.map(json.loads).tolist())
monoxide = monoxide[monoxide.value != -200]
hours = monoxide.groupby(pd.to_datetime(monoxide.time).dt.hour).value.mean()
print(f"worst at {hours.idxmax()} o'clock: {hours.max():.2f} mg/m³ in the mean")
# %% The answer
axes = (figure := Figure(layout="constrained")).subplots()
hours.plot.bar(ax=axes, xlabel="hour of the day", ylabel="carbon monoxide, mg/m³")
figure.savefig(picture)
