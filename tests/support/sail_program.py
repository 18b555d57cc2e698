"""Makes the tables of a journal on Sail, by the Python of an environment with `pysail` and the client of Spark 4.1."""

from __future__ import annotations

import json
import resource
import sys

from pysail.spark import SparkConnectServer
from pyspark.sql import SparkSession

from pairmq.pipeline import run

if __name__ == "__main__":
    journal, out = sys.argv[1:]
    server = SparkConnectServer(ip="127.0.0.1", port=0)
    server.start(background=True)
    _, port = server.listening_address
    spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
    before = resource.getrusage(resource.RUSAGE_SELF)
    report = run(journal, out, spark=spark, patience=60.0)
    after = resource.getrusage(resource.RUSAGE_SELF)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"rows": report.rows, "seconds": round(spent, 1), "peak_kib": after.ru_maxrss}))
    spark.stop()
    server.stop()
