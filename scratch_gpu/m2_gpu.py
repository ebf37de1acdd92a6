import sys; sys.path.insert(0,'.')
import torch
from collections import Counter
import torchgauge as tg
from tests.gpu.test_inference import Net, SIZE
from torchgauge.measure import ready
from torchgauge.measure.measuring import module_paths
from torchgauge.measure.profile import profile_runs
from torchgauge.measure.training import TrainingStep
from torchgauge.source import Candidate
m=Net(); x=torch.randn(SIZE); d=torch.device('cuda',0)
with ready(m,Candidate((x,),{},None),device=d,train=True) as sub:
    st=TrainingStep(sub)
    for _ in range(4): st.run()
    r=profile_runs(st.run,module_paths(sub.model),2,device=d)[-1]
linked={id(k) for e in r.events for k in e.kernels}
print('linked',sum(k.duration_ns for e in r.events for k in e.kernels),'all',sum(k.duration_ns for k in r.kernels))
print([(k.name[:80],k.duration_ns,k.stream,k.start_ns-r.start_ns) for k in r.kernels if id(k) not in linked])
print([(e.name,[k.duration_ns for k in e.kernels]) for e in r.events if 'foreach' in e.name or 'Optim' in e.name])
print(r.end_ns-r.start_ns)
