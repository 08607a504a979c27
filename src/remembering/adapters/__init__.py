"""LoRA adapters and heads: the parameters that a task trains.

`lora` defines an adapter and runs batches that use one or several of them, `bank` holds all
adapters of a model, `peft_format` reads and writes PEFT's files, `heads` maps labels to outputs.
How adapters are trained and chosen belongs to `learning` and `routing`.
"""
