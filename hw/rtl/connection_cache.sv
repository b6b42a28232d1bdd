// The lines of connections that were used last, a set-associative cache over the table in host memory.
//
//   IDLE ── lookup ──► COMPARE ── hit ─────────────────────────► IDLE
//                         │ miss                                  ▲
//                         ├── the way has changes ► EVICT ─┐      │
//                         └────────────────────────────────┴► FETCH ► WAIT
//
// One lookup at a time. Its answer is followed by an update at most, of the same line, before the next lookup or in the same cycle.
module connection_cache #(
    parameter int SETS_LOG2 = 4,
    parameter int WAYS_LOG2 = 2
) (
    input logic clk,
    input logic rst,
    input logic [31:0] table_base,
    input logic lookup,
    output logic lookup_ready,
    input logic [15:0] lookup_connection,
    // Forget what is here of the connection, changes too, and read it anew.
    input logic lookup_anew,
    output logic answer,
    output logic [nic_pkg::CONNECTION_BITS-1:0] answer_line,
    input logic update,
    input logic [nic_pkg::CONNECTION_BITS-1:0] update_line,
    // Host memory.
    output logic read,
    input logic read_ready,
    output logic [31:0] read_address,
    input logic data_valid,
    input logic [nic_pkg::CONNECTION_BITS-1:0] data,
    output logic write,
    input logic write_ready,
    output logic [31:0] write_address,
    output logic [nic_pkg::CONNECTION_BITS-1:0] write_data,
    output logic count_hit,
    output logic count_miss
);
  localparam int SETS = 1 << SETS_LOG2;
  localparam int WAYS = 1 << WAYS_LOG2;
  localparam int TAG_BITS = 16 - SETS_LOG2;
  localparam logic [2:0] IDLE = 3'd0;
  localparam logic [2:0] COMPARE = 3'd1;
  localparam logic [2:0] EVICT = 3'd2;
  localparam logic [2:0] FETCH = 3'd3;
  localparam logic [2:0] WAIT = 3'd4;

  logic [2:0] state_q;
  logic [15:0] connection_q;
  logic anew_q;
  logic [WAYS_LOG2-1:0] way_q;
  // The way that gives way next, of all sets alike.
  logic [WAYS_LOG2-1:0] victim_q;

  logic [SETS_LOG2-1:0] set;
  logic [TAG_BITS-1:0] tag;
  assign set = connection_q[SETS_LOG2-1:0];
  assign tag = connection_q[15:SETS_LOG2];

  logic [WAYS-1:0] valid_q[SETS];
  logic [WAYS-1:0] dirty_q[SETS];
  logic [TAG_BITS*WAYS-1:0] tags_q[SETS];

  // Of the set that is looked at: which way has the connection.
  logic [WAYS-1:0] matched;
  logic [WAYS_LOG2-1:0] match_way;
  always_comb begin
    match_way = '0;
    for (int i = 0; i < WAYS; i++) begin
      matched[i] = valid_q[set][i] && tags_q[set][TAG_BITS*i+:TAG_BITS] == tag;
      if (matched[i]) match_way = WAYS_LOG2'(i);
    end
  end
  // Where a connection goes that is not here: into a way that has none, else into each in turn. (In turn alone, connections
  // that are used in the order of their numbers would share one way of each set.)
  logic [WAYS_LOG2-1:0] victim;
  always_comb begin
    victim = victim_q;
    for (int i = 0; i < WAYS; i++) if (!valid_q[set][i]) victim = WAYS_LOG2'(i);
  end
  // The line was updated in the cycle of this lookup, when the memory was read.
  logic just_updated_q;
  logic [nic_pkg::CONNECTION_BITS-1:0] just_updated_line_q;
  always_ff @(posedge clk) begin
    just_updated_q <= update && lookup && lookup_connection == connection_q;
    just_updated_line_q <= update_line;
  end
  logic hit;
  assign hit = state_q == COMPARE && |matched && !anew_q;

  logic store;
  logic [SETS_LOG2+WAYS_LOG2-1:0] store_at;
  logic [nic_pkg::CONNECTION_BITS-1:0] store_line;
  logic filled;
  assign filled = state_q == WAIT && data_valid;
  assign store = update || filled;
  assign store_at = {way_q, set};
  assign store_line = filled ? data : update_line;

  // One memory for each way, all read at once, in the cycle of the lookup.
  logic [nic_pkg::CONNECTION_BITS-1:0] way_lines[WAYS];
  logic [SETS_LOG2-1:0] read_set;
  assign read_set = (state_q == IDLE) ? lookup_connection[SETS_LOG2-1:0] : set;
  for (genvar w = 0; w < WAYS; w++) begin : ways
    line_ram #(
        .WIDTH(nic_pkg::CONNECTION_BITS),
        .ADDRESS_BITS(SETS_LOG2)
    ) lines (
        .clk,
        .write(store && store_at[SETS_LOG2+:WAYS_LOG2] == WAYS_LOG2'(w)),
        .write_address(store_at[SETS_LOG2-1:0]),
        .write_data(store_line),
        .read_address(read_set),
        .read_data(way_lines[w])
    );
  end

  assign lookup_ready = state_q == IDLE;
  assign answer = hit || filled;
  assign answer_line = filled ? data : just_updated_q ? just_updated_line_q : way_lines[match_way];
  assign count_hit = hit;
  assign count_miss = filled && !anew_q;

  assign read = state_q == FETCH;
  assign read_address = table_base + 32'(connection_q);
  assign write = state_q == EVICT;
  assign write_address = table_base + 32'({tags_q[set][TAG_BITS*way_q+:TAG_BITS], set});
  assign write_data = way_lines[way_q];

  always_ff @(posedge clk) begin
    if (rst) begin
      state_q <= IDLE;
      connection_q <= '0;
      anew_q <= 1'b0;
      way_q <= '0;
      victim_q <= '0;
      for (int i = 0; i < SETS; i++) begin
        valid_q[i] <= '0;
        dirty_q[i] <= '0;
      end
    end else begin
      if (update) dirty_q[set][way_q] <= 1'b1;
      case (state_q)
        IDLE:
        if (lookup) begin
          state_q <= COMPARE;
          connection_q <= lookup_connection;
          anew_q <= lookup_anew;
        end
        COMPARE: begin
          way_q <= |matched ? match_way : victim;
          if (hit) state_q <= IDLE;
          else if (|matched) state_q <= FETCH;
          else if (valid_q[set][victim] && dirty_q[set][victim]) state_q <= EVICT;
          else state_q <= FETCH;
        end
        EVICT: if (write_ready) state_q <= FETCH;
        FETCH: if (read_ready) state_q <= WAIT;
        default:
        if (data_valid) begin
          state_q <= IDLE;
          valid_q[set][way_q] <= 1'b1;
          dirty_q[set][way_q] <= 1'b0;
          tags_q[set][TAG_BITS*way_q+:TAG_BITS] <= tag;
          victim_q <= victim_q + 1'b1;
        end
      endcase
    end
  end
endmodule
