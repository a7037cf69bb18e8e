"""Which Megatron-LM and MindSpeed-LLM flags are understood, which change neither memory nor time, which are refused.

Every flag is in exactly one of the three tables. A flag that is in none is refused too: a guess would be silent.
"""

from __future__ import annotations

_UNDERSTOOD = """
    defer-embedding-wgrad-compute wgrad-deferral-limit
    account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split accumulate-allreduce-grads-in-fp32
    add-bias-linear add-dense-bias add-output-layer-bias add-qkv-bias attention-backend attention-dropout
    attention-output-gate bf16 context-parallel-algo context-parallel-size cp-comm-type cross-entropy-fusion-impl
    cross-entropy-loss-fusion ddp-bucket-size decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers
    decoder-num-layers decoder-seq-length disable-bias-linear embed-layernorm enable-cuda-graph
    enable-recompute-layers-per-pp-rank encoder-num-layers encoder-seq-length exp-avg-dtype exp-avg-sq-dtype
    experimental-attention-variant expert-model-parallel-size expert-tensor-parallel-size ffn-hidden-size
    first-k-dense-replace fp16 fp8 fp8-format fp8-hybrid global-batch-size grad-reduce-in-bf16 group-query-attention
    hidden-dropout hidden-size hybrid-attention-ratio hybrid-layer-pattern hybrid-mlp-ratio hybrid-override-pattern
    is-hybrid-model kv-channels kv-lora-rank linear-attention-freq linear-conv-kernel-dim linear-key-head-dim
    linear-num-key-heads linear-num-value-heads linear-value-head-dim main-grads-dtype main-params-dtype
    make-vocab-size-divisible-by mamba-d-conv mamba-d-state mamba-expand mamba-head-dim mamba-headdim mamba-ngroups
    mamba-num-groups mamba-num-heads mamba-state-dim max-position-embeddings micro-batch-size moe-enable-deepep
    moe-expert-capacity-factor moe-ffn-hidden-size moe-flex-dispatcher-backend moe-intermediate-size moe-layer-freq
    moe-pad-expert-input-to-capacity moe-router-group-topk moe-router-num-groups moe-router-topk
    moe-shared-expert-gate moe-shared-expert-intermediate-size moe-token-dispatcher-type mtp-num-layers
    multi-head-latent-attention multi-latent-attention n-shared-experts nnodes no-accumulate-allreduce-grads-in-fp32
    no-add-position-embedding no-gradient-accumulation-fusion no-position-embedding no-rope-fusion noop-layers
    normalization nproc_per_node num-attention-heads num-distributed-optimizer-instances num-experts num-layer-list
    num-layers num-layers-per-virtual-pipeline-stage num-query-groups num-virtual-stages-per-pipeline-rank optimizer
    optimizer-cpu-offload optimizer-offload-fraction overlap-grad-reduce overlap-param-gather padded-vocab-size
    pipeline-model-parallel-layout pipeline-model-parallel-size position-embedding-type post-norm q-lora-rank
    qk-head-dim qk-layernorm qk-nope-head-dim qk-pos-emb-head-dim qk-rope-head-dim recompute-activation-function
    recompute-activation-function-num-layers recompute-activations recompute-granularity recompute-method
    recompute-modules recompute-norm recompute-norm-num-layers recompute-num-layers reuse-fp32-param seq-length
    sequence-parallel shape-order shared-expert-gate spec squared-relu swap-optimizer swiglu
    tensor-model-parallel-size tokenizer-model tokenizer-name-or-path tokenizer-type tp-comm-overlap transformer-impl
    untie-embeddings-and-output-weights use-ascend-mc2 use-distributed-optimizer use-flash-attn use-fused-rmsnorm
    use-fused-rotary-pos-emb use-fused-swiglu use-mcore-models use-precision-aware-optimizer
    use-rotary-position-embeddings v-head-dim vocab-extra-ids vocab-size window-size
"""
UNDERSTOOD = frozenset(_UNDERSTOOD.split())

_IRRELEVANT: dict[str, str] = {
    "data, checkpoints and start of the run": """
        async-save async-strategy auto-detect-ckpt-format bert-no-binary-head ckpt-assume-constant-structure
        ckpt-convert-format ckpt-format ckpt-fully-parallel-load ckpt-fully-parallel-save ckpt-step data-args-path
        data-cache-path data-parallel-random-init data-path dataloader-type dist-ckpt-format
        dist-ckpt-optim-fully-reshardable dist-ckpt-save-pre-mcore-014 dist-ckpt-strictness enable-ft-package
        enable-high-availability eod-mask-loss exit-duration-in-mins exit-interval
        exit-on-missing-checkpoint exit-signal-handler fim-data fim-rate fim-spm-rate finetune force-reinstall
        high-priority-stream-groups legacy-tokenizer load mask-prob merge-file mock-data no-cache-dir
        no-ckpt-fully-parallel-save no-create-attention-mask-in-dataloader no-load-optim no-load-rng no-mmap-bin-files
        no-one-logger no-save-optim no-save-rng no-shared-storage no-use-checkpoint-opt_param-scheduler
        non-persistent-ckpt-type non-persistent-save-interval npu-deterministic num-dataset-builder-threads
        num-workers override-opt_param-scheduler per-split-data-args-path pretrained-checkpoint prompt-type
        reproducibility rerun-mode reset-attention-mask reset-position-ids retro-workdir save save-interval
        save-retain-interval seed short-seq-prob split test-data-path tiktoken-num-special-tokens tiktoken-pattern
        tiktoken-special-tokens train-data-path train-iters train-samples train-tokens use-checkpoint-args
        use-checkpoint-opt_param-scheduler use-deter-comp use-dist-ckpt use-persistent-ckpt-worker valid-data-path
        verify-integrity vocab-file
        """,
    "schedule of the learning rate and other hyperparameters of unchanged cost": """
        adam-beta1 adam-beta2 adam-eps apply-query-key-layer-scaling attention-softmax-in-fp32 attn-logit-softcapping
        clip-grad decoupled-lr decoupled-min-lr embedding-init-method-std embedding-multiplier-scale end-weight-decay
        final-logit-softcapping hysteresis init-method-std init-method-xavier-uniform init-norm-weight-in-fp32
        initial-loss-scale input-embeddings-norm layernorm-epsilon loss-scale loss-scale-window lr lr-decay-iters
        lr-decay-samples lr-decay-style lr-warmup-fraction lr-warmup-init lr-warmup-iters lr-warmup-samples
        lr-wsd-decay-iters lr-wsd-decay-samples lr-wsd-decay-style min-loss-scale min-lr min-lr-ratio
        mtp-loss-scaling-factor muon-extra-scale-factor muon-momentum muon-num-ns-steps muon-scale-mode muon-split-qkv
        muon-tp-mode no-initialization no-query-key-layer-scaling norm-epsilon output-logit-softcapping
        output-multiplier-scale perform-initialization query-scale rampup-batch-size scale-depth scale-emb
        sgd-momentum softmax-scale start-weight-decay use-mup weight-decay weight-decay-incr-style
        """,
    "logging, evaluation and profiling": """
        check-for-large-grads check-for-nan-in-loss-and-grad check-for-spiky-loss
        check-weight-hash-across-dp-replicas-interval config-logger-dir eval-interval eval-iters full-validation
        log-batch-size-to-tensorboard log-energy log-interval log-loss-scale-to-tensorboard log-memory-interval
        log-memory-to-tensorboard log-num-zeros-in-grad log-params-norm log-progress log-straggler log-throughput
        log-timers-to-tensorboard log-validation-ppl-to-tensorboard log-world-size-to-tensorboard logging
        logging-level memory-snapshot-path moe-per-layer-logging no-check-for-nan-in-loss-and-grad
        no-log-learnig-rate-to-tensorboard no-log-loss-scale-to-tensorboard nvtx-ranges one-logger-project
        one-logger-run-name profile profile-data-simplification profile-export-type profile-level profile-ranks
        profile-record-shapes profile-save-path profile-step-end profile-step-start profile-with-cpu
        profile-with-memory profile-with-stack record-memory-history result-rejected-tracker-filename skip-train
        straggler-ctrlr-port straggler-minmax-count tensorboard-dir tensorboard-log-interval tensorboard-queue-size
        timing-log-level timing-log-option use-pytorch-profiler wandb-exp-name wandb-project wandb-save-dir
        """,
    "process start and communication set-up": """
        disable-gloo-group disable-gloo-process-groups distributed-backend distributed-timeout-minutes
        enable-gloo-process-groups handler-name lazy-mpu-init local-rank local-ranks-filter local_rank log_dir
        manual-gc manual-gc-eval manual-gc-interval master_addr master_port max_restarts nccl-communicator-config-path
        no-barrier-with-level-1-timing node_rank rdzv_backend rdzv_conf rdzv_endpoint rdzv_id sharp-enabled-group tee
        use-cpu-initialization use-ring-exchange-p2p use-tp-pp-dp-mapping
        """,
    "positional encoding of unchanged shape": """
        apply-rope-no-in-complex beta-fast beta-slow dynamic-factor long-factor long-mscale longrope-freqs-type mscale
        mscale-all-dim no-rope-freq original-max-position-embeddings rope-beta-fast rope-beta-slow
        rope-scaling-beta-fast rope-scaling-beta-slow rope-scaling-factor rope-scaling-mscale
        rope-scaling-mscale-all-dim rope-scaling-original-max-position-embeddings rope-scaling-type rope-type
        rotary-base rotary-base-global rotary-interleaved rotary-percent rotary-scaling-factor
        rotary-seq-len-interpolation-factor short-factor short-mscale use-glm-rope use-rope-scaling
        """,
    "router arithmetic of unchanged shapes": """
        fix-router input-jitter moe-aux-loss-coeff moe-comm-aux-loss-coeff moe-device-level-aux-loss-coeff
        moe-input-jitter-eps moe-router-bias-update-rate moe-router-dtype moe-router-enable-expert-bias
        moe-router-force-load-balancing moe-router-fusion moe-router-load-balancing-type moe-router-padding-for-fp8
        moe-router-padding-for-quantization moe-router-pre-softmax moe-router-score-function
        moe-router-topk-limited-devices moe-router-topk-scaling-factor moe-token-drop-policy moe-z-loss-coeff n-group
        norm-topk-prob routed-scaling-factor router-gating-in-fp32 seq-aux topk-group
        """,
    "an implementation of the same operation with the same saved tensors": """
        align-grad-reduce align-param-gather apply-residual-connection-post-layernorm attention-mask-type
        batch-p2p-communication calculate-per-token-loss coc-fused-kernel coc-parallel-num cp-window-size
        cuda-graph-warmup-steps ddp-average-in-collective deterministic-mode disable-tp-comm-bulk-dgrad
        disable-tp-comm-bulk-wgrad disable-tp-comm-overlap-ag disable-tp-comm-overlap-rs disable-tp-comm-split-ag
        disable-tp-comm-split-rs distrib-optim-fully-reshardable-mem-efficient export-force-local-attention
        export-te-mcore-model fp8-amax-compute-algo fp8-amax-history-len fp8-interval fp8-margin fp8-recipe fp8-wgrad
        gemm-gradient-accumulation-fusion keep-fp8-transpose-cache kv-head-repeat-before-uly-alltoall mamba-chunk-size
        masked-softmax-fusion mla-fa-divide-qk mla-fa-without-pad mla-mm-split moe-alltoall-overlap-comm moe-bmm-mc2
        moe-extended-ep moe-grouped-gemm moe-permutation-async-comm moe-permute-fusion moe-shared-expert-overlap
        moe-use-legacy-grouped-gemm moe-zerc next-tockens no-bias-dropout-fusion no-bias-gelu-fusion
        no-bias-swiglu-fusion no-fp8-wgrad no-masked-softmax-fusion no-overlap-p2p-communication no-persist-layer-norm
        no-use-layer-wise-param-layout overlap-moe-expert-parallel-comm overlap-p2p-communication
        overlap-param-gather-with-optimizer-step pre-tockens skip-bias-add sparse-mode te-rng-tracker
        tp-comm-bootstrap-backend use-ascend-coc use-cp-send-recv-overlap use-flash-attn-1 use-fused-matmul
        use-fused-mlp use-fused-moe-token-permute-and-unpermute use-fused-ring-attention-update
        use-mc2 use-mcore-models use-nccl-ub use-sage-attn
        """,
}

IRRELEVANT: dict[str, str] = {
    flag: reason for reason, flags in _IRRELEVANT.items() for flag in flags.split() if flag not in UNDERSTOOD
}

REFUSED: dict[str, str] = {
    "use-legacy-models": "Megatron-LM's models before its core are not modelled",
    "enable-hbmfault-repair": "copies kept for repairs of a device's memory are not modelled",
    "tp-2d": "two-dimensional tensor parallelism is not modelled",
    "tp-x": "two-dimensional tensor parallelism is not modelled",
    "tp-y": "two-dimensional tensor parallelism is not modelled",
    "use-torch-fsdp2": "FSDP2 inside Megatron-LM is not modelled",
    "use-megatron-fsdp": "Megatron-FSDP's buffers are not modelled",
    "use-custom-fsdp": "Megatron-FSDP's buffers are not modelled",
    "data-parallel-sharding-strategy": "Megatron-FSDP's buffers are not modelled",
    "outer-dp-sharding-strategy": "Megatron-FSDP's buffers are not modelled",
    "megatron-fsdp-grad-comm-dtype": "Megatron-FSDP's buffers are not modelled",
    "megatron-fsdp-main-grads-dtype": "Megatron-FSDP's buffers are not modelled",
    "megatron-fsdp-main-params-dtype": "Megatron-FSDP's buffers are not modelled",
    "hsdp": "Megatron-FSDP's buffers are not modelled",
    "fine-grained-activation-offloading": "offloading of activations is not modelled",
    "offload-modules": "offloading of activations is not modelled",
    "cpu-offloading": "offloading of activations is not modelled",
    "cpu-offloading-num-layers": "offloading of activations is not modelled",
    "swap-attention": "offloading of activations is not modelled",
    "adaptive-memory-optimization": "offloading of activations is not modelled",
    "smart-swap": "offloading of activations is not modelled",
    "swap-modules": "offloading of activations is not modelled",
    "recompute-in-bubble": "recomputation placed by the schedule is not modelled",
    "recompute-in-advance": "recomputation placed by the schedule is not modelled",
    "adaptive-recompute-device-size": "recomputation chosen at run time is not modelled",
    "adaptive-recompute-enable": "recomputation chosen at run time is not modelled",
    "schedules-method": "MindSpeed's other pipeline schedules are not modelled",
    "moe-fb-overlap": "MindSpeed's overlap of forward and backward keeps activations that are not modelled",
    "optimize-send-recv-comm": "MindSpeed's nano-pipe schedule is not modelled",
    "use-nanopipe": "MindSpeed's nano-pipe schedule is not modelled",
    "use-nanopipe-swap": "MindSpeed's nano-pipe schedule is not modelled",
    "delay-wgrad-compute": "delayed weight gradients keep tensors that are not modelled",
    "export-kd-cfg": "a distillation teacher on the device is not modelled",
    "export-kd-teacher-load": "a distillation teacher on the device is not modelled",
    "export-te-mcore-teacher": "a distillation teacher on the device is not modelled",
    "dataset-provider": "vision encoders are not modelled",
    "model-provider": "vision encoders are not modelled",
    "language-model-checkpoint": "vision encoders are not modelled",
    "img-h": "vision encoders are not modelled",
    "img-w": "vision encoders are not modelled",
    "patch-dim": "vision encoders are not modelled",
    "num-channels": "vision encoders are not modelled",
    "packing-buffer-size": "packed multimodal samples are not modelled",
    "total-seq-length": "packed multimodal samples are not modelled",
    "use-transformer-engine-op-fuser": "the fused operations' saved tensors are not modelled",
    "enable-dsa-indexer": "sparse attention with an indexer is not modelled",
    "index-topk": "sparse attention with an indexer is not modelled",
    "index-n-heads": "sparse attention with an indexer is not modelled",
    "index-topk-freq": "sparse attention with an indexer is not modelled",
    "index-skip-topk-offset": "sparse attention with an indexer is not modelled",
    "index-share-for-mtp-iteration": "sparse attention with an indexer is not modelled",
    "indexer-loss-coeff": "sparse attention with an indexer is not modelled",
    "use-sparse-flash-attn": "sparse attention with an indexer is not modelled",
    "use-fused-lightning-indexer": "sparse attention with an indexer is not modelled",
    "use-fused-lightning-indexer-loss": "sparse attention with an indexer is not modelled",
    "no-use-sparse-c8-indexer": "sparse attention with an indexer is not modelled",
    "enable-mla-absorb": "latent attention with absorbed up-projections is not modelled",
    "recompute-mtp-layer": "recomputation of the prediction layers alone is not modelled",
    "recompute-mtp-norm": "recomputation of the prediction layers alone is not modelled",
    "enable-mla-scale-q-lora": "LongCat's shortcut layers are not modelled",
    "enable-mla-scale-kv-lora": "LongCat's shortcut layers are not modelled",
    "num-zero-experts": "experts without weights are not modelled",
    "mtp-mem-efficient-logits": "chunked logits of multi-token prediction are not modelled",
    "output-layer-slice-num": "a sliced output layer is not modelled",
    "ulysses-degree-in-cp": "mixed ring and all-to-all context parallelism is not modelled",
    "hierarchical-context-parallel-sizes": "mixed ring and all-to-all context parallelism is not modelled",
    "hybrid-context-parallel": "context parallelism that varies by sample is not modelled",
    "encoder-tensor-model-parallel-size": "encoders with their own parallel sizes are not modelled",
    "encoder-pipeline-model-parallel-size": "encoders with their own parallel sizes are not modelled",
    "microbatch-group-size-per-virtual-pipeline-stage": "interleaving in other groups than pp is not modelled",
    "fp4-format": "fp4 is not modelled",
    "fp8-param-gather": "fp8 weights without a 16-bit copy are not modelled",
    "distribute-saved-activations": "distributed checkpoints of activations are not modelled",
    "lora-r": "LoRA is not modelled",
    "lora-target-modules": "LoRA is not modelled",
    "lora-alpha": "LoRA is not modelled",
    "lora-fusion": "LoRA is not modelled",
    "stage": "post-training stages are not modelled",
    "cuda-graph-scope": "CUDA graphs' memory pools are not modelled",
    "cuda-graph-impl": "CUDA graphs' memory pools are not modelled",
    "external-cuda-graph": "CUDA graphs' memory pools are not modelled",
    "heterogeneous-layers-config-path": "layers described by another file are not readable from the arguments",
    "heterogeneous-layers-config-encoded-json": "layers of many shapes are not modelled",
    "retro-add-retriever": "retrieval encoders are not modelled",
    "layerwise-distributed-optimizer": "a layer-wise distributed optimizer is not modelled",
    "use-layer-wise-distributed-optimizer": "a layer-wise distributed optimizer is not modelled",
    "layerwise-disaggregated-training": "layer-wise disaggregated training is not modelled",
    "moe-latent-size": "latent experts are not modelled",
    "moe-upcycling-granularity": "upcycled experts are not modelled",
}
