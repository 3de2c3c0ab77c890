#!/usr/bin/env bash
# Records four whole runs of PPO, 300,000 steps each, and shows 65 critics these and the three streams of the package.
# whole.csv and whole.png are its table.csv and table.png. About half an hour on two cores.
set -euo pipefail
out=${1:-whole}
mkdir -p "$out"
for task in Hopper-v5 HalfCheetah-v5 Walker2d-v5 Swimmer-v5; do
  [ -e "$out/$task.npz" ] || kova record $task --seed 100 --rollouts 146 --steps 256 --envs 8 --out "$out/$task.npz"
done
kova stream Hopper-v5 HalfCheetah-v5 Reacher-v5 "$out"/*-v5.npz --jobs 2 --out "$out" --critics \
  kova kova:p3 kova:each:p3 kova:l{0.9,1} kova:h{0.03,0.1,0.3} \
  adam:{3e-4,1e-3,3e-3}:p{1,3,10} adam:1e-2:p1 adam:3e-4:p10:h0.1 \
  memoryless:{0.001,0.1}:p1 memoryless:0.01:p{1,3,10} \
  kronecker:{0.001,0.003,0.01,0.03,0.1,0.3}{,:v10,:v30,:v100}:p1 \
  kronecker:{0.001,0.003,0.01,0.03,0.1,0.3}:adaptive:p1 kronecker:{0.001,0.003,0.03,0.1,0.3}:fan-in:adaptive:p1 \
  low-rank:{0.003,0.01,0.1}{,:fan-in:adaptive}:p1
