"""Arguments of Megatron-LM and MindSpeed-LLM as configurations."""

from prism_cp.estimation.megatron_arguments.arguments import configuration_from_arguments
from prism_cp.estimation.megatron_arguments.reading import Arguments, UnsupportedArgument, read_arguments

__all__ = ["Arguments", "UnsupportedArgument", "configuration_from_arguments", "read_arguments"]
