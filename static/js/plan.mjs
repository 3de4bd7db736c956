// A plan is read again when the engine's state is not the plan's any more, at most every two seconds.
// engine: whose plan it is to be; plan: what the one that is shown was made of.
export function keepPlan(engine, plan, reread) {
  let timer = 0, readAt = -2000;
  addEventListener("q-data", ({ detail: { topic, data } }) => {
    const p = plan();
    if (timer || topic !== `engine:${engine()}` || (String(data.idle) === p.idle && (data.pending_operation?.op_id ?? "") === p.op)) return;
    timer = setTimeout(() => { timer = 0; readAt = performance.now(); reread(); }, Math.max(0, readAt + 2000 - performance.now()));
  });
}
