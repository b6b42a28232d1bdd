// receive_credits: credits are conserved, and a receive ring is never overwritten before the host frees a slot, whatever the host says
// that it has freed. Two flows of 4 slots; the others keep to the rules: they take a credit only where one is shown, and give back or write
// only what was taken.
module receive_credits_proof (
    input logic clk,
    input logic rst,
    input logic poll_take,
    input logic [0:0] poll_flow,
    input logic core_take,
    input logic core_give,
    input logic [0:0] core_flow,
    input logic written,
    input logic [0:0] written_flow,
    input logic freed,
    input logic [0:0] freed_flow,
    input logic [15:0] freed_total
);
  localparam int SLOTS = 4;
  logic freed_forged;
  logic [1:0] available;
  logic [1:0] spare;
  logic [31:0] levels;
  logic [31:0] helds;
  logic [31:0] freed_totals;
  logic [1:0] started_q = '0;
  logic restart;
  logic [0:0] restart_flow;
  assign restart = !started_q[0] || !started_q[1];
  assign restart_flow = started_q[0];
  receive_credits #(
      .FLOWS(2),
      .FLOW_BITS(1)
  ) dut (
      .restart_slots(16'(SLOTS)),
      .*
  );

  // One of the flows, either.
  (* anyconst *) logic [0:0] watched;
  // Credits taken and not used yet; slots written; slots that the host has freed, of those.
  logic [15:0] promised_q = '0;
  logic [15:0] written_q = '0;
  logic [15:0] freed_q = '0;
  logic took_poll;
  logic took_core;
  logic gave;
  logic wrote;
  assign took_poll = poll_take && poll_flow == watched;
  assign took_core = core_take && core_flow == watched;
  assign gave = core_give && core_flow == watched;
  assign wrote = written && written_flow == watched;
  initial assume (rst);
  always_ff @(posedge clk) begin
    if (!rst) assume (started_q == 2'b11 || !(poll_take || core_take || core_give || written || freed));
    assume (!poll_take || available[poll_flow]);
    assume (!core_take || spare[core_flow]);
    assume (!(core_take && core_give));
    // What a flow has promised is known of the watched one; of the other it does not matter.
    assume (16'(gave) + 16'(wrote) <= promised_q);
    if (rst) begin
      started_q <= '0;
      promised_q <= '0;
      written_q <= '0;
      freed_q <= '0;
    end else begin
      if (!started_q[0]) started_q[0] <= 1'b1;
      else started_q[1] <= 1'b1;
      promised_q <= promised_q + 16'(took_poll) + 16'(took_core) - 16'(gave) - 16'(wrote);
      written_q <= written_q + 16'(wrote);
      if (freed && !freed_forged && freed_flow == watched) freed_q <= freed_total;
      // Nothing happens before both flows have started.
      assert (started_q != 2'b10);
      if (started_q != 2'b11) assert (promised_q == '0 && written_q == '0 && freed_q == '0);
      if (started_q[watched]) begin
        // Conserved: what is free, promised, and with the host, is the ring.
        assert (levels[16*watched+:16] + promised_q + (written_q - freed_q) == 16'(SLOTS));
        assert (levels[16*watched+:16] <= 16'(SLOTS) && promised_q <= 16'(SLOTS));
        assert (helds[16*watched+:16] == 16'(written_q - freed_q) && freed_totals[16*watched+:16] == freed_q);
        // Never overwritten: no more slots are written and not freed than there are, even if all that is promised is written.
        assert (16'(written_q - freed_q) <= 16'(SLOTS));
        assert (16'(written_q - freed_q) + promised_q <= 16'(SLOTS));
        // A host cannot free what it was not given.
        if (freed && freed_flow == watched && 16'(freed_total - freed_q) > 16'(written_q - freed_q)) assert (freed_forged);
      end
    end
  end
endmodule
