"""octavo on KServe's ModelServer: `python -m octavo_adapters.kserve --model_name=... --model_dir=/mnt/models`."""
