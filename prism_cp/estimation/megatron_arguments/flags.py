"""Which Megatron-LM and MindSpeed-LLM flags are understood, which change neither memory nor time, which are refused.

Every flag is in exactly one of the three tables. A flag that is in none is refused too: a guess would be silent.
"""

from __future__ import annotations

_UNDERSTOOD = """
    account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split accumulate-allreduce-grads-in-fp32
    activation-func-fp8-input-store add-dense-bias add-output-layer-bias add-qkv-bias attention-backend
    attention-dropout attention-output-gate bf16 context-parallel-algo context-parallel-size cp-comm-type
    cross-entropy-fusion-impl cross-entropy-loss-fusion data-parallel-sharding-strategy ddp-bucket-size
    decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers decoder-num-layers decoder-seq-length
    defer-embedding-wgrad-compute deterministic-mode disable-bias-linear embed-layernorm
    enable-recompute-layers-per-pp-rank encoder-num-layers encoder-seq-length exp-avg-dtype exp-avg-sq-dtype
    experimental-attention-variant expert-model-parallel-size expert-tensor-parallel-size ffn-hidden-size
    fine-grained-activation-offloading first-k-dense-replace fp16 fp8 fp8-format fp8-param-gather geglu gelu-tanh
    global-batch-size grad-reduce-in-bf16 group-query-attention hidden-dropout hidden-size hybrid-attention-ratio
    hybrid-layer-pattern hybrid-mlp-ratio hybrid-override-pattern interleave-sliding-window is-hybrid-model kv-channels
    kv-lora-rank linear-attention-freq linear-conv-kernel-dim linear-key-head-dim linear-num-key-heads
    linear-num-value-heads linear-value-head-dim main-grads-dtype main-params-dtype make-vocab-size-divisible-by
    mamba-chunk-size mamba-d-conv mamba-d-state mamba-expand mamba-head-dim mamba-headdim mamba-ngroups mamba-num-groups
    mamba-num-heads mamba-state-dim max-position-embeddings megatron-fsdp-grad-comm-dtype megatron-fsdp-main-grads-dtype
    megatron-fsdp-main-params-dtype micro-batch-size mla-fa-without-pad moe-expert-capacity-factor moe-ffn-hidden-size
    moe-flex-dispatcher-backend moe-grouped-gemm moe-intermediate-size moe-layer-freq moe-layer-recompute
    moe-pad-expert-input-to-capacity moe-router-group-topk moe-router-num-groups moe-router-topk moe-shared-expert-gate
    moe-shared-expert-intermediate-size moe-token-dispatcher-type mtp-num-layers multi-head-latent-attention
    multi-latent-attention n-shared-experts nnodes no-add-position-embedding no-bias-swiglu-fusion
    no-gradient-accumulation-fusion no-position-embedding noop-layers normalization nproc_per_node num-attention-heads
    num-distributed-optimizer-instances num-experts num-layer-list num-layers num-layers-per-virtual-pipeline-stage
    num-query-groups num-virtual-stages-per-pipeline-rank offload-modules optimizer optimizer-cpu-offload
    optimizer-offload-fraction outer-dp-sharding-strategy overlap-grad-reduce overlap-moe-expert-parallel-comm
    overlap-param-gather padded-vocab-size pipeline-model-parallel-layout pipeline-model-parallel-size
    position-embedding-type post-norm q-lora-rank qk-head-dim qk-layernorm qk-nope-head-dim qk-pos-emb-head-dim
    qk-rope-head-dim quick-geglu recompute-activation-function recompute-activation-function-num-layers
    recompute-activations recompute-granularity recompute-method recompute-mla-up-proj recompute-modules recompute-norm
    recompute-norm-num-layers recompute-num-layers reuse-fp32-param schedules-method seq-length sequence-parallel
    shared-expert-gate spec swap-attention swap-modules swap-optimizer swiglu tensor-model-parallel-size tokenizer-model
    tokenizer-name-or-path tokenizer-type tp-comm-overlap transformer-impl untie-embeddings-and-output-weights
    use-ascend-mc2 use-custom-fsdp use-distributed-optimizer use-flash-attn use-fused-rotary-pos-emb use-fused-swiglu
    use-mcore-models use-megatron-fsdp use-precision-aware-optimizer use-rotary-position-embeddings v-head-dim
    vocab-extra-ids vocab-size wgrad-deferral-limit window-attn-skip-freq window-size
"""
UNDERSTOOD = frozenset(_UNDERSTOOD.split())

_IRRELEVANT: dict[str, str] = {
    "data, checkpoints and start of the run": """
        adlr-autoresume adlr-autoresume-interval allow-ambiguous-pad-tokens append-eod async-ckpt-use-cached-structure
        async-save async-strategy auto-detect-ckpt-format auto-tune-dataset bert-no-binary-head calc-ft-timeouts
        check-ckpt ckpt-assume-constant-structure ckpt-convert-format ckpt-convert-save
        ckpt-convert-update-legacy-dist-opt-format ckpt-format ckpt-fully-parallel-load ckpt-fully-parallel-save
        ckpt-fully-parallel-save-deprecated ckpt-load-dir ckpt-save-dir ckpt-step data-args-path data-cache
        data-cache-path data-parallel-random-init data-path dataloader-type decrease-batch-size-if-needed disable-msc
        dist-ckpt-format dist-ckpt-optim-fully-reshardable dist-ckpt-save-pre-mcore-014 dist-ckpt-strictness
        dist-ckpt-workers distributed-optimizer-no-replica enable-elastic-training enable-ft-package
        enable-hf2mg-convert enable-high-availability enable-mg2hf-convert enable-msc enable-worker-reboot eod-mask-loss
        error-injection-rate error-injection-type exit-duration-in-mins exit-interval exit-on-missing-checkpoint
        exit-signal exit-signal-handler fim-data fim-rate fim-spm-rate finetune force-reinstall ft-num-warmup-iters
        hf-config-path high-priority-stream-groups legacy-tokenizer load load-main-params-from-ckpt
        load-model-opt-format manual-seed mask-prob merge-file mg-load-dir mg-save-dir mid-level-dataset-surplus
        mock-data model-type-hf multiple-validation-sets no-cache-dir no-ckpt-fully-parallel-save
        no-create-attention-mask-in-dataloader no-load-optim no-load-rng no-load-scheduler no-mmap-bin-files
        no-one-logger no-save-optim no-save-rng no-shared-storage no-shuffle no-use-checkpoint-opt_param-scheduler
        no-use-tokenizer-model-from-checkpoint-args non-persistent-ckpt-type non-persistent-save-interval
        npu-deterministic num-dataset-builder-threads num-workers object-storage-cache-path override-opt_param-scheduler
        pad-vocab-size-to per-split-data-args-path phase-transition-iterations pretrained-checkpoint prompt-type
        replication replication-factor replication-jump reproducibility rerun-mode reset-attention-mask
        reset-position-ids retriever-seq-length retro-workdir sample-rate save save-embeddings save-interval
        save-retain-interval save-tensorboard seed short-seq-prob shuffle split strict-fsdp-dtensor-load test-data-path
        test-mode tiktoken-num-special-tokens tiktoken-pattern tiktoken-special-tokens tokenizer-kwargs
        tokenizer-metadata tokenizer-not-use-fast tokenizer-padding-side tokenizer-special-tokens train-data-path
        train-iters train-samples train-tokens trust-remote-code use-checkpoint-args use-checkpoint-opt_param-scheduler
        use-deter-comp use-dist-ckpt use-mp-args-from-checkpoint-args use-persistent-ckpt-worker valid-data-path
        verify-integrity vocab-file
        """,
    "schedule of the learning rate and other hyperparameters of unchanged cost": """
        activation-func-clamp-value adam-beta1 adam-beta2 adam-eps add-rmsnorm-offset apply-layernorm-1p
        apply-query-key-layer-scaling attention-multiplier attention-softmax-in-fp32 attn-logit-softcapping clip-grad
        decoupled-lr decoupled-min-lr decoupled-weight-decay dim-model-base embedding-init-method-std
        embedding-multiplier-scale end-weight-decay final-logit-softcapping glu-linear-offset hysteresis init-method-std
        init-method-xavier-uniform init-norm-weight-in-fp32 initial-loss-scale input-embeddings-norm input-embeds-norm
        layernorm-1p layernorm-epsilon loss-scale loss-scale-window lr lr-decay-iters lr-decay-samples lr-decay-style
        lr-multiplier lr-warmup-fraction lr-warmup-init lr-warmup-iters lr-warmup-samples lr-wsd-decay-iters
        lr-wsd-decay-samples lr-wsd-decay-style min-loss-scale min-lr min-lr-ratio mtp-loss-scaling-factor
        muon-extra-scale-factor muon-fp32-matmul-prec muon-matched-adamw-rms muon-momentum muon-num-ns-steps
        muon-scale-mode muon-split-qkv muon-tp-mode muon-use-nesterov mup-attn-scale-power mup-base-head-dim
        mup-base-hidden-size mup-embedding-mult mup-output-mult mup-width-mult no-decoupled-weight-decay
        no-initialization no-muon-use-nesterov no-query-key-layer-scaling norm-epsilon norm-head normalize-embeddings
        openai-gelu optimizer-selection output-logit-softcapping output-multiplier-scale perform-initialization qk-clip
        qk-clip-alpha qk-clip-threshold query-pre-attn-scalar query-scale rampup-batch-size residual-multiplier
        scale-depth scale-emb sgd-momentum softmax-scale softmax-type start-weight-decay train-sync-interval use-mup
        weight-decay weight-decay-incr-style
        """,
    "logging, evaluation and profiling": """
        app-tag-run-name app-tag-run-version auto-parallel-profile check-for-large-grads check-for-nan-in-loss-and-grad
        check-for-spiky-loss check-weight-hash-across-dp-replicas-interval config-logger-dir enable-one-logger
        eval-interval eval-iters full-validation log-batch-size-to-tensorboard log-device-memory-used log-energy
        log-interval log-learning-rate-to-tensorboard log-loss-scale-to-tensorboard log-max-attention-logit log-memory
        log-memory-interval log-memory-to-tensorboard log-num-zeros-in-grad log-params-norm log-progress log-straggler
        log-throughput log-timers-to-tensorboard log-validation-ppl-to-tensorboard log-world-size-to-tensorboard logging
        logging-level memory-profile-path memory-snapshot-path moe-per-layer-logging no-check-for-nan-in-loss-and-grad
        no-log-learnig-rate-to-tensorboard no-log-loss-scale-to-tensorboard nvtx-ranges one-logger-async
        one-logger-entity one-logger-project one-logger-run-name print-args profile profile-data-simplification
        profile-export-type profile-level profile-name profile-ranks profile-record-shapes profile-save-path
        profile-step-end profile-step-start profile-with-cpu profile-with-memory profile-with-stack
        record-memory-history result-rejected-tracker-filename run-workload-inspector-server skip-train
        straggler-ctrlr-port straggler-minmax-count tensorboard-dir tensorboard-log-interval tensorboard-queue-size
        timing-log-level timing-log-option torch-profiler use-pytorch-profiler wandb-entity wandb-exp-name wandb-project
        wandb-save-dir workload-inspector-port
        """,
    "process start and communication set-up": """
        async-log-allreduce cpu-init ddp-pad-buckets-for-high-nccl-busbw disable-gloo-group disable-gloo-process-groups
        disable-jit-fuser distributed-backend distributed-timeout-minutes distributed-timeout-seconds-after-init
        empty-unused-memory-level enable-experimental enable-gloo enable-gloo-process-groups fake-process-group
        handler-name hccl-ep-group-buffer-adaptive-factor hccl-group-buffer hccl-group-buffer-adaptive
        init-model-with-meta-device inprocess-restart jit-compile lazy-mpu-init local-rank local-ranks-filter local_rank
        local_ranks_filter log_dir manual-gc manual-gc-eval manual-gc-interval master_addr master_port max_restarts
        nccl-communicator-config-path nnode nnodes_min no-align-grad-reduce no-align-param-gather
        no-async-tensor-model-parallel-allreduce no-barrier no-barrier-with-level-1-timing
        no-clone-scatter-output-in-embedding no-gradient-reduce-div-fusion no-manual-gc-eval
        no-scatter-gather-tensors-in-pipeline node_rank nproc pipeline-model-parallel-comm-backend rdzv_backend
        rdzv_conf rdzv_endpoint rdzv_id sharp-enabled-group standalone tee torchrun tp-comm-overlap-cfg
        use-cpu-initialization use-ring-exchange-p2p use-sharp use-tp-pp-dp-mapping
        """,
    "positional encoding of unchanged shape": """
        alibi-diagonal-opt alibi-fusion-attn-type apply-rope-no-in-complex beta-fast beta-slow dynamic-factor
        fill-neg-inf high-freq-factor long-factor long-mscale longrope-freqs-type low-freq-factor mrope-section mscale
        mscale-all-dim no-rope-freq no-rope-freqs original-max-position-embeddings partial-rotary-factor
        relative-attention-max-distance relative-attention-num-buckets rope-beta-fast rope-beta-slow
        rope-scaling-attention-factor rope-scaling-beta-fast rope-scaling-beta-slow rope-scaling-extrapolation-factor
        rope-scaling-factor rope-scaling-high-freq-factor rope-scaling-low-freq-factor rope-scaling-mscale
        rope-scaling-mscale-all-dim rope-scaling-original-max-position-embeddings rope-scaling-rope-type
        rope-scaling-type rope-type rotary-base rotary-base-global rotary-base-local rotary-interleaved rotary-percent
        rotary-scaling-factor rotary-seq-len-interpolation-factor short-factor short-mscale square-alibi-mask
        use-glm-rope use-partial-rope use-rope-scaling
        """,
    "router arithmetic of unchanged shapes": """
        enable-token-rearrange-opt fix-router input-jitter moe-apply-probs-on-input moe-aux-loss-coeff
        moe-comm-aux-loss-coeff moe-device-level-aux-loss-coeff moe-input-jitter-eps moe-no-drop moe-renorm-coeff
        moe-revert-type-after-topk moe-router-aux-loss-fusion moe-router-bias-update-rate moe-router-dtype
        moe-router-enable-expert-bias moe-router-force-load-balancing moe-router-fusion moe-router-group-score
        moe-router-jitter moe-router-load-balancing-type moe-router-padding-for-fp8 moe-router-padding-for-quantization
        moe-router-pre-softmax moe-router-score-function moe-router-topk-limited-devices moe-router-topk-scaling-factor
        moe-token-drop-policy moe-z-loss-coeff n-group no-moe-router-aux-loss-fusion noisy-gate-policy norm-topk-prob
        routed-scaling-factor router-bias router-gating-in-fp32 seq-aux topk-group use-router-bias
        """,
    "an implementation of the same operation with the same saved tensors": """
        add-bias-linear align-grad-reduce align-param-gather apply-residual-connection-post-layernorm
        attention-mask-type batch-invariant-mode batch-p2p-communication cache-mla-latents calculate-per-token-loss
        coc-fused-kernel coc-parallel-num cp-window-size cuda-graph-warmup-steps ddp-average-in-collective
        disable-bf16-reduced-precision-matmul disable-mamba-mem-eff-path disable-tp-comm-bulk-dgrad
        disable-tp-comm-bulk-wgrad disable-tp-comm-overlap-ag disable-tp-comm-overlap-rs disable-tp-comm-split-ag
        disable-tp-comm-split-rs distrib-optim-fully-reshardable-mem-efficient export-force-local-attention
        export-te-mcore-model fp16-lm-cross-entropy fp8-amax-compute-algo fp8-amax-history-len fp8-interval fp8-margin
        fp8-quantizer-factory fp8-recipe fp8-wgrad fused-adamw gemm-gradient-accumulation-fusion inference-rng-tracker
        keep-fp8-transpose-cache kv-head-repeat-before-uly-alltoall masked-softmax-fusion mla-fa-divide-qk mla-mm-split
        mla-up-proj-tp-overlap moe-alltoall-overlap-comm moe-bmm-mc2 moe-deepep-num-sms moe-enable-deepep
        moe-extended-ep moe-hierarchical-alltoallv moe-hybridep-num-sms moe-permutation-async-comm moe-permute-fusion
        moe-shared-expert-overlap moe-use-legacy-grouped-gemm moe-zerc next-tockens no-bias-dropout-fusion
        no-bias-gelu-fusion no-fp8-wgrad no-masked-softmax-fusion no-overlap-p2p-communication no-persist-layer-norm
        no-pin-cpu-grads no-pin-cpu-params no-rope-fusion no-use-layer-wise-param-layout npu-fused-adamw
        output-layer-slice-num overlap-cpu-optimizer-d2h-h2d overlap-p2p-communication
        overlap-p2p-communication-warmup-flush overlap-param-gather-with-optimizer-step pre-tockens recompute-mtp-layer
        recompute-mtp-norm shape-order sinkhorn-iters skip-bias-add sparse-mode squared-relu te-rng-tracker
        tp-comm-bootstrap-backend use-ascend-coc use-cp-send-recv-overlap use-flash-attn-1 use-fused-lightning-attention
        use-fused-matmul use-fused-mlp use-fused-moe-token-permute-and-unpermute use-fused-ring-attention-update
        use-fused-rmsnorm use-fused-rotary-pos-emb-new use-fused-weighted-squared-relu use-fusion-attn-v2 use-joint-moe
        use-mc2 use-nccl-ub use-npu-fusion use-sage-attn use-te-activation-func use-torch-optimizer-for-cpu-offload
        use-triton-gdn
        """,
}

IRRELEVANT: dict[str, str] = {flag: reason for reason, flags in _IRRELEVANT.items() for flag in flags.split()}

_REFUSED: dict[str, str] = {
    "CUDA graphs' memory pools are not modelled": """
        cuda-graph-impl cuda-graph-modules cuda-graph-scope cuda-graph-share-io-buffers enable-cuda-graph
        external-cuda-graph
        """,
    "FSDP2 inside Megatron-LM is not modelled": """
        torch-fsdp2-no-reshard-after-forward use-torch-fsdp2
        """,
    "LoRA is not modelled": """
        lora-alpha lora-fusion lora-r lora-target-modules
        """,
    "LongCat's shortcut layers are not modelled": """
        enable-mla-scale-kv-lora enable-mla-scale-q-lora
        """,
    "Megatron-FSDP's persistent buffers and sharding over two levels are not modelled": """
        enable-full-sharding-in-hsdp fsdp-double-buffer fsdp-manual-registration hsdp suggested-communication-unit-size
        """,
    "Megatron-LM's models before its core are not modelled": """
        use-legacy-models
        """,
    "MindSpeed's memory savings inside experts are not modelled": """
        moe-unperm2-mem-optim moe-unperm2-mem-optim-swap moe-zero-memory moe-zero-memory-num-layers
        """,
    "MindSpeed's memory savings inside latent attention are not modelled": """
        mla-zero-memory
        """,
    "MindSpeed's nano-pipe schedule is not modelled": """
        optimize-send-recv-comm use-nanopipe use-nanopipe-swap
        """,
    "MindSpeed's overlap of forward and backward keeps activations that are not modelled": """
        moe-fb-overlap
        """,
    "MindSpeed's pipelined attention and feed-forward are not modelled": """
        ampipe-degree
        """,
    "MindSpeed's pipelined experts are not modelled": """
        moe-experts-pipeline-degree pipe-experts-multi-data pipe-experts-multi-stream use-pipe-experts
        """,
    "a distillation teacher on the device is not modelled": """
        export-kd-cfg export-kd-teacher-load export-te-mcore-teacher
        """,
    "a layer-wise distributed optimizer is not modelled": """
        layerwise-distributed-optimizer use-layer-wise-distributed-optimizer
        """,
    "adaptive context parallelism is not modelled": """
        adaptive-cp-dynamic-attn-mask adaptive-cp-manually-set-mask-list adaptive-cp-only-reschedule
        adaptive-cp-without-coarse
        """,
    "another file of values: give that file to --megatron-args instead": """
        yaml-cfg
        """,
    "chunked logits of multi-token prediction are not modelled": """
        mtp-mem-efficient-logits
        """,
    "context parallelism that varies by sample is not modelled": """
        hybrid-context-parallel
        """,
    "copies kept for repairs of a device's memory are not modelled": """
        enable-hbmfault-repair
        """,
    "copies of optimizer states are not modelled": """
        enable-optimizer-state-local-copy
        """,
    "delayed weight gradients keep tensors that are not modelled": """
        delay-wgrad-compute
        """,
    "detached prediction heads are not modelled": """
        mtp-detach-heads
        """,
    "distributed checkpoints of activations are not modelled": """
        distribute-saved-activations
        """,
    "documents of varying length are not modelled": """
        no-pad-to-seq-lengths variable-seq-lengths
        """,
    "encoders with their own parallel sizes are not modelled": """
        encoder-pipeline-model-parallel-size encoder-tensor-model-parallel-size
        """,
    "experts spread over tensor-parallel ranks are not modelled": """
        moe-extended-tp
        """,
    "experts spread over tensor-parallel ranks by MindSpeed are not modelled": """
        moe-tp-extend-ep
        """,
    "experts without weights are not modelled": """
        num-zero-experts
        """,
    "fine-tuning data of varying length is not modelled": """
        cut-max-seqlen is-instruction-dataset pad-to-multiple-of padded-samples sft
        """,
    "fp4 is not modelled": """
        fp4-format fp4-param fp4-recipe
        """,
    "fp8 weights without a 16-bit copy are not modelled": """
        fp8-param
        """,
    "give layers of a virtual stage instead": """
        virtual-pipeline-model-parallel-size
        """,
    "hyper-connections are not modelled": """
        enable-hyper-connections num-residual-streams
        """,
    "inference is not modelled": """
        inference-max-seq-length
        """,
    "interleaving in other groups than pp is not modelled": """
        microbatch-group-size-per-virtual-pipeline-stage
        """,
    "keys and values shared between layers are not modelled": """
        cla-share-factor share-kvstates
        """,
    "latent attention with absorbed up-projections is not modelled": """
        enable-mla-absorb
        """,
    "latent experts are not modelled": """
        moe-latent-size
        """,
    "layer-wise disaggregated training is not modelled": """
        layerwise-disaggregated-training
        """,
    "layers described by another file are not readable from the arguments": """
        heterogeneous-layers-config-path
        """,
    "layers of different precision are not modelled": """
        first-last-layers-bf16 kitchen-config-file kitchen-recipe-number num-layers-at-end-in-bf16
        num-layers-at-start-in-bf16 te-precision-config-file
        """,
    "layers of many shapes are not modelled": """
        heterogeneous-layers-config-encoded-json
        """,
    "masks outside of the device are not modelled": """
        attention-mask-on-cpu
        """,
    "memory released early by overlapped exchanges is not modelled": """
        ep-overlap-early-attn-memory-release
        """,
    "mixed ring and all-to-all context parallelism is not modelled": """
        hierarchical-context-parallel-sizes ulysses-degree-in-cp
        """,
    "offloading of activations is not modelled": """
        adaptive-memory-optimization cpu-offloading cpu-offloading-num-layers mla-swap-core-attn-out smart-swap
        """,
    "packed multimodal samples are not modelled": """
        packing-buffer-size total-seq-length
        """,
    "post-training stages are not modelled": """
        stage
        """,
    "prediction depths that share a layer are not modelled": """
        mtp-use-repeated-layer
        """,
    "recomputation chosen at run time is not modelled": """
        adaptive-recompute-device-size adaptive-recompute-enable
        """,
    "recomputation placed by the schedule is not modelled": """
        recompute-in-advance recompute-in-bubble
        """,
    "reinforcement learning is not modelled": """
        perform-rl-step
        """,
    "residual streams in fp32 are not modelled": """
        fp32-residual-connection
        """,
    "retrieval encoders are not modelled": """
        biencoder-projection-dim retro-add-retriever
        """,
    "shared gradient and parameter buffers are not modelled": """
        reuse-grad-buf-for-mxfp8-param-ag
        """,
    "sliding windows of MindSpeed-LLM are not modelled": """
        sliding-window
        """,
    "sparse attention with an indexer is not modelled": """
        dsa-indexer-head-dim dsa-indexer-loss-coeff dsa-indexer-n-heads dsa-indexer-topk enable-dsa-indexer
        index-n-heads index-share-for-mtp-iteration index-skip-topk-offset index-topk index-topk-freq indexer-loss-coeff
        no-use-sparse-c8-indexer use-fused-lightning-indexer use-fused-lightning-indexer-loss use-sparse-flash-attn
        """,
    "the fused operations' saved tensors are not modelled": """
        use-transformer-engine-op-fuser
        """,
    "two-dimensional tensor parallelism is not modelled": """
        nd1-dim1-size nd2-dim1-size tp-2d tp-x tp-y use-nd-matmul use-tp2d
        """,
    "upcycled experts are not modelled": """
        moe-upcycling-granularity moe-use-upcycling
        """,
    "vision encoders are not modelled": """
        dataset-provider img-h img-w language-model-checkpoint model-provider num-channels patch-dim
        """,
}

REFUSED: dict[str, str] = {flag: reason for reason, flags in _REFUSED.items() for flag in flags.split()}
