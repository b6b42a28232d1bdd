// Credits of the receive rings: one for every slot that is neither promised nor in the host's hands.
//
//   credits ── take ──► promised ── written ──► the host's ── freed ──► credits
//                          └────── give (not needed after all) ──────────►
//
// Whoever is going to write a slot takes its credit first, so that a full ring never loses anything. The poller may take the
// last credit, others leave it one: so entries, and with them responses, keep moving while the ring is full of requests.
module receive_credits #(
    parameter int FLOWS = 4,
    parameter int FLOW_BITS = 2
) (
    input logic clk,
    input logic rst,
    // A flow starts anew, with so many slots.
    input logic restart,
    input logic [FLOW_BITS-1:0] restart_flow,
    input logic [15:0] restart_slots,
    // The poller takes a credit of a flow whose `available` is set.
    input logic poll_take,
    input logic [FLOW_BITS-1:0] poll_flow,
    // The transport takes one of a flow whose `spare` is set, or gives one back.
    input logic core_take,
    input logic core_give,
    input logic [FLOW_BITS-1:0] core_flow,
    // A slot has been written.
    input logic written,
    input logic [FLOW_BITS-1:0] written_flow,
    // The host says how many slots it has freed since the flow started.
    input logic freed,
    input logic [FLOW_BITS-1:0] freed_flow,
    input logic [15:0] freed_total,
    output logic freed_forged,
    output logic [FLOWS-1:0] available,
    output logic [FLOWS-1:0] spare,
    output logic [16*FLOWS-1:0] levels,
    // What the host has, and what it has said that it has freed: for a debugger, and for proofs.
    output logic [16*FLOWS-1:0] helds,
    output logic [16*FLOWS-1:0] freed_totals
);
  logic [16*FLOWS-1:0] credits_q;
  logic [16*FLOWS-1:0] held_q;
  logic [16*FLOWS-1:0] freed_q;
  logic [15:0] freed_now;
  logic freed_good;

  assign freed_now = freed_total - freed_q[16*freed_flow+:16];
  assign freed_good = freed && freed_now <= held_q[16*freed_flow+:16];
  assign freed_forged = freed && !freed_good;

  always_comb begin
    for (int i = 0; i < FLOWS; i++) begin
      available[i] = credits_q[16*i+:16] != 16'd0;
      spare[i] = credits_q[16*i+:16] > 16'd1;
    end
  end
  assign levels = credits_q;
  assign helds = held_q;
  assign freed_totals = freed_q;

  always_ff @(posedge clk) begin
    if (rst) begin
      credits_q <= '0;
      held_q <= '0;
      freed_q <= '0;
    end else if (restart || poll_take || core_take || core_give || written || freed) begin
      for (int i = 0; i < FLOWS; i++) begin
        if (restart && restart_flow == FLOW_BITS'(i)) begin
          credits_q[16*i+:16] <= restart_slots;
          held_q[16*i+:16] <= '0;
          freed_q[16*i+:16] <= '0;
        end else begin
          credits_q[16*i+:16] <= credits_q[16*i+:16]
              - 16'(poll_take && poll_flow == FLOW_BITS'(i))
              - 16'(core_take && core_flow == FLOW_BITS'(i))
              + 16'(core_give && core_flow == FLOW_BITS'(i))
              + ((freed_good && freed_flow == FLOW_BITS'(i)) ? freed_now : 16'd0);
          held_q[16*i+:16] <= held_q[16*i+:16]
              + 16'(written && written_flow == FLOW_BITS'(i))
              - ((freed_good && freed_flow == FLOW_BITS'(i)) ? freed_now : 16'd0);
          if (freed_good && freed_flow == FLOW_BITS'(i)) freed_q[16*i+:16] <= freed_total;
        end
      end
    end
  end
endmodule
