// What a server's slot does with a request packet: delivers the request, once, when all of it is here, or answers that it was here before.
// Pure decision; the slot's state is in the connection's line.
//
//   IDLE ──► EXECUTING ──► RESPONDED ──┐ the slot's next call
//     │   (the host responds)          │
//     ├──► RECEIVING ──► EXECUTING     │ (a request of several packets, each stored once: the first has the verdict, the last ends it)
//     └──► DENIED, LIMITED ────────────┤ (the NIC has answered itself)
//                                      └──► as from IDLE
module server_slot (
    input logic [2:0] phase,
    input logic [31:0] slot_call,
    // While a request is received, bit i: packet i + 1 is here, as the first is. Later, how many packets it had.
    input logic [4:0] here,
    input logic [31:0] packet_call,
    // The packet is one of several, with this number; the last; asks for an acknowledgement.
    input logic several,
    input logic [2:0] number,
    input logic last,
    input logic asks,
    // What the policies say of the request.
    input logic [1:0] verdict,
    // The receive ring has a slot for it.
    input logic credit,
    // A request begins: it has passed the policies, with this packet.
    output logic admit,
    // Store the packet; deliver the request; say how many packets are here; ask the host for its response again; answer with a status.
    output logic store,
    output logic deliver,
    output logic acknowledge,
    output logic repeat_response,
    output logic deny,
    output logic [2:0] phase_next,
    output logic [31:0] call_next,
    output logic [4:0] here_next,
    // Why nothing came of it.
    output logic stale,
    output logic forbidden,
    output logic no_room
);
  logic [31:0] ahead;
  assign ahead = packet_call - slot_call;
  // This packet, and those between the first and this. The last is taken when all others are here: its bytes are then known to end the message,
  // whatever other packets say of it.
  logic [4:0] own;
  logic [4:0] earlier;
  logic gap;
  assign own = 5'd1 << (number - 3'd1);
  assign earlier = own - 5'd1;
  assign gap = (here & earlier) != earlier;

  always_comb begin
    admit = 1'b0;
    store = 1'b0;
    deliver = 1'b0;
    acknowledge = 1'b0;
    repeat_response = 1'b0;
    deny = 1'b0;
    phase_next = phase;
    call_next = slot_call;
    here_next = here;
    stale = 1'b0;
    forbidden = 1'b0;
    no_room = 1'b0;
    if (ahead == 32'd1 && phase != nic_pkg::PHASE_EXECUTING) begin
      if (several && number != 3'd0) stale = 1'b1;
      else if (verdict != nic_pkg::VERDICT_PASS) begin
        deny = 1'b1;
        call_next = packet_call;
        phase_next = (verdict == nic_pkg::VERDICT_DENIED) ? nic_pkg::PHASE_DENIED : nic_pkg::PHASE_LIMITED;
      end else if (several) begin
        admit = 1'b1;
        store = 1'b1;
        acknowledge = asks;
        call_next = packet_call;
        here_next = 5'd0;
        phase_next = nic_pkg::PHASE_RECEIVING;
      end else if (credit) begin
        admit = 1'b1;
        deliver = 1'b1;
        call_next = packet_call;
        here_next = 5'd1;
        phase_next = nic_pkg::PHASE_EXECUTING;
      end else no_room = 1'b1;
    end else if (ahead == 32'd0) begin
      case (phase)
        nic_pkg::PHASE_RECEIVING: begin
          if (!several || number == 3'd7 || (number == 3'd6 && !last)) forbidden = 1'b1;
          else if (number == 3'd0 || (here & own) != 5'd0) acknowledge = 1'b1;
          else if (!last) begin
            store = 1'b1;
            acknowledge = asks || gap;
            here_next = here | own;
          end else if (gap) acknowledge = 1'b1;
          else if (credit) begin
            store = 1'b1;
            deliver = 1'b1;
            here_next = 5'(number) + 5'd1;
            phase_next = nic_pkg::PHASE_EXECUTING;
          end else no_room = 1'b1;
        end
        nic_pkg::PHASE_EXECUTING: acknowledge = 1'b1;
        nic_pkg::PHASE_RESPONDED: begin
          repeat_response = credit;
          no_room = !credit;
        end
        nic_pkg::PHASE_DENIED, nic_pkg::PHASE_LIMITED: deny = 1'b1;
        default: stale = 1'b1;
      endcase
    end else if (ahead[31]) stale = 1'b1;
    else forbidden = 1'b1;
  end
endmodule
