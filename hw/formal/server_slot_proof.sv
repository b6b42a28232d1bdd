// server_slot: at most once. The slot's state is kept as the connection's line keeps it; packets and the host's responses come in any
// order and number. Any call is delivered once at most until call numbers come round (2^31 of them), and none without the verdict that it may pass,
// which its first packet has; each packet of a request is stored once, and a request is delivered with its last, when all
// others are stored.
module server_slot_proof (
    input logic clk,
    input logic rst,
    // A packet, or a response of the host, or nothing.
    input logic packet,
    input logic [31:0] packet_call,
    input logic several,
    input logic [2:0] number,
    input logic last,
    input logic asks,
    input logic [1:0] verdict,
    input logic credit,
    input logic respond,
    input logic [31:0] respond_call
);
  logic [2:0] phase_q = '0;
  logic [31:0] call_q = '0;
  logic [4:0] here_q = '0;
  logic admit;
  logic store;
  logic deliver;
  logic acknowledge;
  logic repeat_response;
  logic deny;
  logic [2:0] phase_next;
  logic [31:0] call_next;
  logic [4:0] here_next;
  logic stale;
  logic forbidden;
  logic no_room;
  server_slot dut (
      .phase(phase_q),
      .slot_call(call_q),
      .here(here_q),
      .*
  );

  // Any call of which the server has not heard yet: how far the slot is past it, once it was delivered.
  (* anyconst *) logic [31:0] watched;
  // The slot's call has passed the policies.
  logic passed_q = 1'b0;
  logic delivered_q = 1'b0;
  logic denied_q = 1'b0;
  // Packets of the slot's call that were stored.
  logic [7:0] stored_q = '0;
  logic [31:0] since_q = '0;
  logic grows;
  assign grows = packet && (admit || deny) && call_next != call_q;
  initial assume (rst);
  always_ff @(posedge clk) begin
    if (rst) begin
      phase_q <= '0;
      call_q <= '0;
      here_q <= '0;
      stored_q <= '0;
      passed_q <= 1'b0;
      delivered_q <= 1'b0;
      denied_q <= 1'b0;
      since_q <= '0;
    end else begin
      // Call numbers do not come round.
      assume (since_q < 32'h7fff_0000);
      if (packet) begin
        phase_q <= phase_next;
        call_q <= call_next;
        here_q <= here_next;
        if (store) stored_q <= (admit ? 8'd0 : stored_q) | (8'd1 << number);
        if (admit) passed_q <= 1'b1;
        else if (call_next != call_q) passed_q <= 1'b0;
        // Only what passes begins; each packet is stored once.
        if (admit) assert (verdict == nic_pkg::VERDICT_PASS && call_next == call_q + 32'd1);
        if (call_next != call_q) assert (admit || deny);
        if (store) assert (several && (admit ? number == 3'd0 : !stored_q[number]));
        // Whatever a packet does, the call stays or is the next.
        assert (call_next == call_q || call_next == call_q + 32'd1);
        assert (!(deliver && deny) && !(deliver && acknowledge) && !(deliver && repeat_response));
        if (deliver) begin
          assert (admit || passed_q);
          assert (credit);
          // All of it is here.
          assert (!several || (store && last && (stored_q | (8'hff << number)) == 8'hff));
          assert (call_next == packet_call && phase_next == nic_pkg::PHASE_EXECUTING);
          // Not while another call of the slot is being executed: its response would be lost.
          assert (phase_q != nic_pkg::PHASE_EXECUTING);
        end
        if (repeat_response) assert (phase_q == nic_pkg::PHASE_RESPONDED && packet_call == call_q);
        if (deliver && packet_call == watched) begin
          assert (!delivered_q);
          assert (!denied_q);
          delivered_q <= 1'b1;
          since_q <= '0;
        end else if (deny && packet_call == watched) begin
          // What was delivered is not denied afterwards.
          assert (!delivered_q);
          denied_q <= 1'b1;
          if (!denied_q) since_q <= '0;
        end else if (grows) since_q <= since_q + 32'd1;
      end else if (respond && respond_call == call_q &&
                   (phase_q == nic_pkg::PHASE_EXECUTING || phase_q == nic_pkg::PHASE_RESPONDED)) begin
        phase_q <= nic_pkg::PHASE_RESPONDED;
      end
      // Where the slot is after the watched call: what makes the proof inductive.
      if (delivered_q || denied_q) assert (call_q - watched == since_q);
      if (phase_q == nic_pkg::PHASE_RECEIVING) assert (passed_q && stored_q == {2'd0, here_q, 1'b1});
      assert (!(delivered_q && denied_q));
      if (delivered_q && since_q == 32'd0)
        assert (phase_q == nic_pkg::PHASE_EXECUTING || phase_q == nic_pkg::PHASE_RESPONDED);
      if (denied_q && since_q == 32'd0)
        assert (phase_q == nic_pkg::PHASE_DENIED || phase_q == nic_pkg::PHASE_LIMITED);
    end
  end
endmodule
