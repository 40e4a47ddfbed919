package policy

// Tables of Unicode's CLDR, by go test ./edge/policy -run TestLanguageTables -update.

// likelySubtags has the likely script and region of a language.
const likelySubtags = "" +
	"aa latn et;ab cyrl ge;ae avst ir;af latn za;ak latn gh;am ethi et;ar arab eg;as beng in;av cyrl ru;ay latn " +
	"bo;az latn az;ba cyrl ru;be cyrl by;bg cyrl bg;bi latn vu;bm latn ml;bn beng bd;bo tibt cn;br latn fr;bs latn " +
	"ba;ca latn es;ce cyrl ru;ch latn gu;co latn fr;cr cans ca;cs latn cz;cu cyrl ru;cv cyrl ru;cy latn gb;da latn " +
	"dk;de latn de;dv thaa mv;dz tibt bt;ee latn gh;el grek gr;en latn us;eo latn 001;es latn es;et latn ee;eu " +
	"latn es;fa arab ir;ff latn sn;fi latn fi;fil latn ph;fj latn fj;fo latn fo;fr latn fr;fy latn nl;ga latn " +
	"ie;gd latn gb;gl latn es;gn latn py;gu gujr in;gv latn im;ha latn ng;he hebr il;hi deva in;ho latn pg;hr latn " +
	"hr;ht latn ht;hu latn hu;hy armn am;hz latn na;ia latn fr;id latn id;ig latn ng;ii yiii cn;ik latn us;io latn " +
	"001;is latn is;it latn it;iu cans ca;ja jpan jp;jv latn id;ka geor ge;kg latn cd;ki latn ke;kj latn na;kk " +
	"cyrl kz;kl latn gl;km khmr kh;kn knda in;ko kore kr;kr latn zz;ks arab in;ku latn tr;kv cyrl ru;kw latn gb;ky " +
	"cyrl kg;la latn va;lb latn lu;lg latn ug;li latn nl;ln latn cd;lo laoo la;lt latn lt;lu latn cd;lv latn lv;mg " +
	"latn mg;mh latn mh;mi latn nz;mk cyrl mk;ml mlym in;mn cyrl mn;mr deva in;ms latn my;mt latn mt;my mymr mm;na " +
	"latn nr;nb latn no;nd latn zw;ne deva np;ng latn na;nl latn nl;nn latn no;no latn no;nr latn za;nv latn us;ny " +
	"latn mw;oc latn fr;om latn et;or orya in;os cyrl ge;pa guru in;pl latn pl;ps arab af;pt latn br;qu latn pe;rm " +
	"latn ch;rn latn bi;ro latn ro;ru cyrl ru;rw latn rw;sa deva in;sc latn it;sd arab pk;se latn no;sg latn cf;si " +
	"sinh lk;sk latn sk;sl latn si;sm latn ws;sn latn zw;so latn so;sq latn al;sr cyrl rs;ss latn za;st latn za;su " +
	"latn id;sv latn se;sw latn tz;ta taml in;te telu in;tg cyrl tj;th thai th;ti ethi et;tk latn tm;tn latn za;to " +
	"latn to;tr latn tr;ts latn za;tt cyrl ru;ty latn pf;ug arab cn;uk cyrl ua;ur arab pk;uz latn uz;ve latn za;vi " +
	"latn vn;vo latn 001;wa latn be;wo latn sn;xh latn za;yi hebr 001;yo latn ng;yue hant hk;za latn cn;zh hans " +
	"cn;zu latn za"

// otherScripts has a language's second script, the script's likely region, and all regions with this script.
const otherScripts = "" +
	"az arab ir iq ir;az cyrl az ru;ha arab ng cm sd;kk arab cn af cn ir mn;ku arab iq lb;ky arab cn cn;ky latn tr " +
	"tr;mn mong cn cn;ms arab my cc id;pa arab pk pk;sr latn rs me ro ru tr;tg arab pk pk;ug cyrl kz kz mn;uz arab " +
	"af af;uz cyrl uz cn;yue hans cn cn;zh hant tw au bn gb gf hk id mo my pa pf ph pz sr th tw uk us vd vn"

// childRegions has the regions whose form of a language falls back to another region's.
const childRegions = "" +
	"en-001 ag ai au bb be bm bs bw bz ca cc ck cm ct cx cy dg dm er fj fk fm gb gd gg gh gi gm gy hk ie il im in " +
	"io je jm ke ki kn ky lc lr ls mg mo ms mt mu mw my na nf ng nh nr nu nz pg ph pk pn pw rh rw sb sc sd sg sh " +
	"sl ss sx sz tc tk to tt tv tz ug uk vc vg vu ws za zm zw;en-150 at ch dd de dk fi nl se si;es-419 ar bo br bz " +
	"cl co cr cu do ec gt hn mx ni pa pe pr py pz sv us uy ve;pt-pt ao ch cv gq gw lu mo mz st tl tp"
