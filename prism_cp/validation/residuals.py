"""Residuals: what the committed table says about its figures and about the errors that are left."""

from __future__ import annotations

READING = """Errors are predicted over measured, minus one; mean, median, p95 and max are of their absolute value.
Constants belong to devices and framework profiles and were fitted on these tables, so the figures are in-sample. A row
is skipped where a fact is missing or a feature is unknown, never for its prediction.

The margin that plans keep (`profile.memory_margin`) is, for every profile with published memory, the 99th percentile of
what was predicted too low when it was set, rounded up; it stays while it covers today's by no more than 0.5 %. It is of
predictions as plans count memory, without the rests of the allocator's blocks (`predicted_plan_memory_gib`). Errors of
this table, and what fits, are without the margin.

Held-out against in-sample mean error of step time, with the table's own constants (the device's GEMM efficiencies; for
mixtures of experts the host's launch time, its synchronisation and the grouped products' gain) chosen on all other
models of the same table: nvidia_dgxc dense bf16 2.2 against 2.2 %, fp8 3.2 against 3.0 % (6 models), MoE 6.0 against
3.4 % (2); nvidia_megatron_bridge dense 4.3 against 4.2 % (2), MoE 5.2 against 4.6 % (3); llm_foundry 2.7 against 2.7 %
(5); korthikanti 2.2 against 2.2 % (4). The form of the formulas was chosen with all rows in sight."""

RESIDUALS = """- **Noise**: the same configuration in another software release differs by about 3 %, up to 10 %; the
  model knows no releases.
- **Step times of small models** (megatron_lm_golden, mindspeed_llm_npu_ci, the studies of one micro-batch): these
  are tests of a few layers, bound by logging, checks and the host, which the model does not describe. Only their memory
  is compared with anything.
- **megatron_lm_golden, memory**: seven tests on GB200 hold 42 to 52 MiB less between steps than predicted, as much as
  cuBLAS workspaces of 8 instead of 32 MiB would explain; other tests with the same settings hold them. Two files of
  A100 repeat H100's values, workspaces included. Mixtures of experts with the all-gather dispatcher keep 9 MiB more
  than predicted.
- **nvidia_dgxc dense**: NeMo 175B in fp8 grows by 7 to 12 % from 128 to 1,024 devices in release v25.01.1 where the
  prediction grows by 2 %, up to 15 % below the last; Llama 3.1 8B in bf16 of v25.04.02 is 6 % faster than the releases
  before it.
- **nvidia_dgxc MoE**: DeepSeek-V3 on GB200 is set by the host, twice as long as its kernels; so is Llama 4 Maverick in
  fp8. Launch times are the least certain constants of the model.
- **nvidia_megatron_bridge MoE**: gpt-oss on GB200, B300 and B200 without graphs is 11 to 15 % too fast, DeepSeek-V3 of
  the latest releases on GB300 up to 13 % too slow (8-bit grouped products), the one run of release 25.11 with plain
  all-to-all 20 % too fast.
- **nvidia_megatron_bridge dense**: Llama 3 70B in fp8 with eight pipeline stages on H100 is 7 to 10 % too slow, in
  nvidia_dgxc's table too (8 to 9 %): the last stage, with the output head's 16-bit products on top of its layers, is
  predicted to set the pace, and what was measured lies between that and stages of equal work. Weight gradients of the
  head that wait for the end of the step would fill that stage's idle time there, about 1 % of the step. One LoRA run
  with four stages is 13 % too slow. One fine-tuning run in MXFP8 on GB300 is 18 % too fast.
- **What fits**: of the runs that fitted and are predicted not to, most are llm-foundry's, whose automatic micro-batches
  fill the device (fragmentation there is less than the 6 % taken), then Llama 3 70B on one pipeline stage, whose
  offloaded activations are not modelled; the rest lack less than 3 %.
- **simumax_b200**: tp 8 is 6 to 11 % too fast. In the published GEMM measurements of that machine small products run at
  0.6 of the peak and large ones at 0.48, the opposite of the model's occupancy term: a power limit, not modelled.
- **llm_foundry**: runs at the memory limit (760M with 48 and 96 sequences, 30B with 8,192 tokens) took 15 to 28 %
  longer: the allocator retries.
- **bloom_prequel**: step times are 12 % too short throughout (one cause: DeepSpeed blocks a rank while it sends between
  stages, which is not modelled); sections are ranked, not fitted. Three head counts (12, 14 and 26 heads of 128 on a
  device) took 8 to 12 % longer than their neighbours for no reason the model has; they are most of the pairs in the
  wrong order. One of the three runs out of memory is predicted to fit: 206B at 60 GiB, where 203B with the same layout
  was measured at 67 GB, so weights and activations do not explain it.
- **torchtitan**: context parallelism over four and eight devices is 22 to 25 % too fast, 8B with tp 8 and asynchronous
  tensor parallelism 10 to 18 %. Memory is what the allocator reserved, taken as allocated
  over its efficiency: selective checkpoints within 6 %; full ones keep one more fp32 copy of the logits, the runs of
  2025 one less than predicted.
- **tflop_per_token**: `Qwen3_Next_80B` prints 2.4 times the figure of `Qwen3_Next_80B_a3B`, the same model; one of the
  two is wrong at the source. Without it the largest error is 0.33 %."""
