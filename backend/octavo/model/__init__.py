"""Networks: one decoder, described by a DecoderSpec, and how its weights are found and loaded."""
