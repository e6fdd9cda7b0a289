#!/usr/bin/env bash
# GRPO in verl with FADE as the policy weight: GSM8K, Qwen2.5-0.5B, one GPU.
#
#   pip install verl==0.9.1 gradmass       in the environment verl and vLLM are in
#   examples/verl_fade.sh                  FADE
#   MODE=shadow examples/verl_fade.sh      verl's own GRPO, and what FADE and others would have done
#
# Everything up to the last lines is what verl wants of any run; more is added with "$@", as in
# examples/verl_fade.sh trainer.n_gpus_per_node=8 trainer.total_epochs=1
# The data: what verl's examples/data_preprocess/gsm8k.py writes, or any that verl reads.
set -euo pipefail

data=${DATA:-$HOME/data/gsm8k}
run=(
  data.train_files="$data/train.parquet"
  data.val_files="$data/test.parquet"
  data.train_batch_size=128
  data.max_prompt_length=512
  data.max_response_length=512
  actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct
  actor_rollout_ref.rollout.name=vllm
  actor_rollout_ref.rollout.n=8
  actor_rollout_ref.rollout.tensor_model_parallel_size=1
  actor_rollout_ref.actor.optim.lr=1e-6
  actor_rollout_ref.actor.ppo_mini_batch_size=128
  actor_rollout_ref.actor.use_dynamic_bsz=True
  # Divided by a constant, the gradient masses are what the weight says.
  actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm
  actor_rollout_ref.actor.loss_scale_factor=512
  # The verifiers of this package, which say when they could not judge.
  reward.custom_reward_function.path=pkg://gradmass.rewards.functions
  reward.custom_reward_function.name=compute_score
  trainer.n_gpus_per_node=1
  trainer.save_freq=50
  trainer.test_freq=50
  'trainer.logger=["console"]'
)

# What this package adds.
gradmass=(trainer.v1.trainer_mode=gradmass_sync +algorithm.gradmass.success=acc)
if [ "${MODE:-weight}" = shadow ]; then
  gradmass+=(
    algorithm.adv_estimator=grpo
    +algorithm.gradmass.mode=shadow
    '+algorithm.gradmass.weight=["fade:entropy_form=relative","maxrl"]'
  )
else
  gradmass+=(
    algorithm.adv_estimator=gradmass_fade
    +algorithm.gradmass.weight.entropy_form=relative
  )
fi

exec "${PYTHON:-python}" -m verl.trainer.main_ppo "${run[@]}" "${gradmass[@]}" "$@"
