#!/usr/bin/env bash
# Every critic of screen.csv on the three streams of the package: about 40 minutes of one core, in turns on two.
# screen.csv is its table.csv.
set -euo pipefail
kova stream --jobs 2 --out "${1:-streams}" --critics \
  kova kova:p3 kova:p10 kova:each:p3 kova:h{0.03,0.1,0.3,1} kova:l{0.8,0.9,0.98,1} \
  adam:{1e-4,3e-4,1e-3,3e-3,1e-2}:p{1,3,10,20} adam:{3e-4,1e-3,3e-3}:each:p{3,10} adam:3e-4:p10:h0.1 adam:1e-3:p3:h0.1 \
  adam:3e-4:p10:l{0.9,0.98,1} \
  memoryless:{0.001,0.01,0.1}:p{1,3,10} memoryless:0.01:p1:h0.1 \
  kronecker:{0.001,0.003,0.01,0.03,0.1,0.3}{,:v10,:v30,:v100,:fan-in}:p1 \
  kronecker:{0.001,0.003,0.01,0.03,0.1,0.3}{,:v10,:v30,:v100}:adaptive:p1 \
  kronecker:{0.001,0.003,0.03,0.1,0.3}:fan-in:adaptive:p1 \
  kronecker:{0.001,0.01,0.1}{,:v30}:p3 kronecker:{0.001,0.1}:fan-in:adaptive:p3 \
  kronecker:0.001:fan-in:adaptive:p1:h0.1 kronecker:0.1:p1:h0.1 \
  low-rank:{0.003,0.01,0.1}{,:fan-in}{,:adaptive}:p1
