"""Find the fastest layouts for a training run: data, context, pipeline and tensor parallelism, and what fits."""

from threeloops.training.planning import LLAMA_70B, h100_node, memory, plans

TOKENS, BATCH, SEQUENCE = 1e12, 1024, 8192

print("dp   cp  pp  tp  ZeRO  chunks  microbatch   memory of a GPU   time of a step     MFU   days for 1e12 tokens")
for step in plans(LLAMA_70B, h100_node(), gpus=512, batch=BATCH, sequence=SEQUENCE)[:6]:
    plan = step.plan
    most = max(stage.total for stage in memory(LLAMA_70B, plan)) / 2**30
    days = TOKENS / (BATCH * SEQUENCE) * step.seconds / 86_400
    layout = f"{plan.dp:<4} {plan.cp:<3} {plan.pp:<3} {plan.tp:<3} {plan.zero:<5} {plan.chunks:<7} {plan.microbatch:<8}"
    print(f"{layout} {most:13.1f} GiB {step.seconds:14.2f} s {step.mfu:8.1%} {days:10.1f}")
