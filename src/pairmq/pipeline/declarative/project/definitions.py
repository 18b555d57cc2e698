"""What `spark-pipelines` reads: all of PairMQ's tables."""

from pairmq.pipeline.declarative import define

define()
